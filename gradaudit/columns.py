"""The losses of a window and what the user's code made of them: a column for each loss, a term for each micro-batch."""

from dataclasses import replace
from functools import cached_property
from math import isclose, isfinite

from gradaudit.history import AuditedUpdate, Term


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
    if not all(isfinite(term.coefficient) for terms in losses for term in terms):
        return None
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
            mean = [_as_mean(term, share, count) for term, share, count in zip(terms, shares, counts, strict=True)]
            means.setdefault(shown, []).append(mean)
    likely = means.get(True, means.get(False, []))  # a count by which it is seen to be divided comes first
    return min(likely, key=lambda mean: _surprise(mean[0].coefficient, n), default=terms)


def _as_mean(term: Term, share: float, count: float) -> Term:
    times, over = _without(1 / count, term.times), _without(count, term.over)
    return replace(term, reduction="mean", value=share, scale=1.0, items=count, times=times, over=over)


def _without(value: float, numbers: tuple[float, ...]) -> tuple[float, ...]:
    place = next((k for k, number in enumerate(numbers) if isclose(number, value, rel_tol=1e-3)), len(numbers))
    return numbers[:place] + numbers[place + 1 :]


def divides(count: float, term: Term) -> bool:
    """Is this one of the numbers by which the script is seen to divide a loss?"""
    divisors = [*term.over, *(1 / number for number in term.times if number)]
    return any(isclose(divisor, count, rel_tol=1e-3) for divisor in divisors)


def _is_fraction(share: float) -> bool:
    """Whether it is 1/k for a whole number k."""
    return share > 0 and isclose(share * round(1 / share), 1.0, rel_tol=1e-3)


def _surprise(share: float, n: int) -> int:
    """The place of a coefficient in the order of what a window may be: correct, undivided, divided twice, else."""
    usual = [1 / n, 1.0, 1 / n**2]
    return next((k for k, each in enumerate(usual) if isclose(share, each, rel_tol=1e-3)), 4 - _is_fraction(share))


def nearly_equal(values: list[float], tolerance: float = 1e-3) -> bool:
    return max(values) - min(values) <= tolerance * max(map(abs, values))
