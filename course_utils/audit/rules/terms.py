"""The losses of a window and what the user's code made of them, as several rules compare them."""

from math import isfinite

from course_utils.audit.history import Term, Window


def losses_of(window: Window) -> list[list[Term]] | None:
    """For each loss of the window, its term in each micro-batch; None if the micro-batches cannot be compared."""
    calls = window.micro_batches
    if not calls or len({call.kinds for call in calls}) != 1 or not calls[0].terms:
        return None
    losses = [list(terms) for terms in zip(*(call.terms for call in calls), strict=True)]
    return losses if all(isfinite(term.coefficient) for terms in losses for term in terms) else None


def total(terms: list[Term]) -> float:
    """The sum of the coefficients: 1 for a loss that is one mean over its window."""
    return sum(term.coefficient for term in terms)


def nearly_equal(values: list[float], tolerance: float = 1e-3) -> bool:
    return max(values) - min(values) <= tolerance * max(map(abs, values), default=1.0)


def items_count_alike(terms: list[Term]) -> bool:
    """Has each sample or token of this loss the same weight, in whichever micro-batch it is?"""
    weights = [term.per_item for term in terms]
    return None not in weights and nearly_equal(weights, 1e-2)
