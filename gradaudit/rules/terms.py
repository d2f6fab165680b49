"""The losses of a window and what the user's code made of them, as several rules compare them."""

from dataclasses import replace
from math import isclose, isfinite

from gradaudit.history import AuditedUpdate, Term

DIVIDE_ONCE = "divide once"  # the fix of what is divided twice, for which fixes.py has words of the framework


def losses_of(window: AuditedUpdate) -> list[list[Term]] | None:
    """For each loss of the window, its term in each micro-batch; None if the micro-batches cannot be compared."""
    calls = window.micro_batches
    if not calls or len({call.kinds for call in calls}) != 1 or not calls[0].terms:
        return None
    losses = [list(terms) for terms in zip(*(call.terms for call in calls), strict=True)]
    if not all(isfinite(term.coefficient) for terms in losses for term in terms):
        return None
    plain = any(terms[0].reduction == "sum" and all(term.coefficient == 1 for term in terms) for terms in losses)
    return losses if plain else [_as_means(_unsigned(terms)) for terms in losses]  # 0.5 * sum beside a sum is no mean


def _unsigned(terms: list[Term]) -> list[Term]:
    """A loss that is written with a minus in front, as -log_probability.mean(), counts as one without."""
    if any(term.coefficient >= 0 for term in terms):
        return terms
    return [replace(term, value=-term.value) for term in terms]


def _as_means(terms: list[Term]) -> list[Term]:
    """Sums that the script divides by counts of their own are means in disguise: the same terms as means.

    A sum may have several counts (its targets, its samples, its numbers), and one of them must explain all
    coefficients: they change with it, or they are 1/k of a mean for a whole number k. What explains a correct loop
    comes first.
    """
    n, coefficients = len(terms), [term.coefficient for term in terms]
    if terms[0].reduction != "sum" or any(nearly_equal([each, *coefficients]) for each in (1.0, 1 / n)):
        return terms  # not divided, or by the number of micro-batches, which may be that of the samples by chance
    means = {}
    for counts in zip(*(term.own for term in terms), strict=False):
        counts = [float(count) for count in counts]
        shares = [coefficient * count for coefficient, count in zip(coefficients, counts, strict=True)]
        shown = all(count != n and divides(count, term) for count, term in zip(counts, terms, strict=True))
        explained = shown or _is_fraction(shares[0]) or not nearly_equal(counts)
        if min(counts) > 0 and nearly_equal(shares) and explained:
            mean = [
                Term(term.name, "mean", share, 1.0, count, term.own, term.weighted, *_numbers_beside(term, count))
                for term, share, count in zip(terms, shares, counts, strict=True)
            ]
            means.setdefault(shown, []).append(mean)
    likely = means.get(True, means.get(False, []))  # a count by which it is seen to be divided comes first
    return min(likely, key=lambda mean: _surprise(mean[0].coefficient, n), default=terms)


def _numbers_beside(term: Term, count: float) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """By what else it is multiplied and divided if the division by `count` makes it a mean."""
    if term.times is None or term.over is None:
        return None, None
    return _without(1 / count, term.times), _without(count, term.over)


def _without(value: float, numbers: tuple[float, ...]) -> tuple[float, ...]:
    place = next((k for k, number in enumerate(numbers) if isclose(number, value, rel_tol=1e-3)), len(numbers))
    return numbers[:place] + numbers[place + 1 :]


def divides(count: float, term: Term) -> bool:
    """Is this one of the numbers by which the script is seen to divide a loss?"""
    divisors = [*(term.over or ()), *(1 / number for number in term.times or () if number)]
    return any(isclose(divisor, count, rel_tol=1e-3) for divisor in divisors)


def _is_fraction(share: float) -> bool:
    """Whether it is 1/k for a whole number k."""
    return share > 0 and isclose(share * round(1 / share), 1.0, rel_tol=1e-3)


def _surprise(share: float, n: int) -> int:
    """The place of a coefficient in the order of what a window may be: correct, undivided, divided twice, else."""
    usual = [1 / n, 1.0, 1 / n**2]
    return next((k for k, each in enumerate(usual) if isclose(share, each, rel_tol=1e-3)), 4 - _is_fraction(share))


def total(terms: list[Term]) -> float:
    """The sum of the coefficients: 1 for a loss that is one mean over its window."""
    return sum(term.coefficient for term in terms)


def nearly_equal(values: list[float], tolerance: float = 1e-3) -> bool:
    return max(values) - min(values) <= tolerance * max(map(abs, values))


def items_count_alike(terms: list[Term]) -> bool:
    """Has each sample or token of this loss the same weight, in whichever micro-batch it is?"""
    weights = [term.per_item for term in terms]
    return None not in weights and nearly_equal(weights, 1e-2)
