"""The losses of a window and what the user's code made of them: a column for each loss, a term for each micro-batch."""

from dataclasses import replace
from functools import cached_property
from math import isclose

from gradaudit.history import AuditedUpdate, Term

_UNUSUAL = 3  # the place of a coefficient that explains nothing


class Column:
    """One loss, in each micro-batch of a window."""

    def __init__(self, terms: list[Term]) -> None:
        self.terms, self.name, self.reduction = terms, terms[0].name, terms[0].reduction

    @cached_property
    def coefficients(self) -> list[float]:
        return [term.coefficient for term in self.terms]

    @property
    def share(self) -> float:
        """The sum of the coefficients: 1 for a loss that is one mean over its window."""
        return sum(self.coefficients)

    @cached_property
    def counts(self) -> list[float | None]:
        return [term.count for term in self.terms]

    @cached_property
    def items_count_alike(self) -> bool:
        """Has each sample or token the same weight, in whichever micro-batch it is?"""
        weights = [term.per_item for term in self.terms]
        return None not in weights and nearly_equal(weights, 1e-2)

    @property
    def weight(self) -> float:
        """What the weights of all samples or tokens add up to."""
        return sum(term.per_item * term.count for term in self.terms)

    @property
    def uneven(self) -> bool:
        """Is it known that samples or tokens have different weights?"""
        return None not in [term.per_item for term in self.terms] and not self.items_count_alike


def columns_of(update: AuditedUpdate) -> list[Column] | None:
    """The losses of a window; None if its micro-batches cannot be compared."""
    parts = update.parts
    if len({tuple((term.name, term.reduction) for term in part) for part in parts}) != 1 or not parts[0]:
        return None
    changed = 1.0 if update.factor is None else update.factor
    losses = [[replace(term, value=term.value * changed) for term in terms] for terms in zip(*parts, strict=True)]
    plain = any(terms[0].reduction == "sum" and all(term.coefficient == 1 for term in terms) for terms in losses)
    if not plain:  # 0.5 * sum beside a sum is no mean
        losses = [_as_means(_unsigned(terms)) for terms in losses]
    return list(map(Column, losses))


def _unsigned(terms: list[Term]) -> list[Term]:
    """A loss that is written with a minus in front, as -log_probability.mean(), counts as one without."""
    if any(term.coefficient >= 0 for term in terms):
        return terms
    return [replace(term, value=-term.value) for term in terms]


def _as_means(terms: list[Term]) -> list[Term]:
    """Sums that the script divides by counts of their own are means in disguise: the same terms as means.

    A sum may have several counts (its targets, its samples, its numbers), and one of them must explain all
    coefficients. One by which the sum is seen to be divided comes first, then what explains a correct loop.
    """
    n, coefficients = len(terms), [term.coefficient for term in terms]
    if terms[0].reduction != "sum" or any(nearly_equal([each, *coefficients]) for each in (1.0, 1 / n)):
        return terms  # not divided, or by the number of micro-batches, which may be that of the samples by chance
    means = {}
    for counts in zip(*(term.own for term in terms), strict=False):
        counts = [float(count) for count in counts]
        shares = [coefficient * count for coefficient, count in zip(coefficients, counts, strict=True)]
        shown = all(divides(count, term) for count, term in zip(counts, terms, strict=True))
        rank = not shown, _surprise(shares[0], n)
        if min(counts) > 0 and nearly_equal(shares) and (rank < (True, _UNUSUAL) or not nearly_equal(counts)):
            pairs = zip(terms, shares, counts, strict=True)
            mean = [replace(term, reduction="mean", value=s, scale=1.0, items=count) for term, s, count in pairs]
            means.setdefault(rank, mean)
    return means[min(means)] if means else terms


def divides(count: float, term: Term) -> bool:
    """Is this one of the numbers by which the script is seen to divide a loss?"""
    divisors = [*term.over, *(1 / number for number in term.times if number)]
    return any(isclose(divisor, count, rel_tol=1e-3) for divisor in divisors)


def _surprise(share: float, n: int) -> int:
    """The place of a coefficient in the order of what a window may be: correct, undivided, divided twice, else."""
    usual = [1 / n, 1.0, 1 / n**2]
    return next((k for k, each in enumerate(usual) if isclose(share, each, rel_tol=1e-3)), _UNUSUAL)


def nearly_equal(values: list[float], tolerance: float = 1e-3) -> bool:
    return max(values) - min(values) <= tolerance * max(map(abs, values))
