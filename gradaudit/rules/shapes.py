"""What the sizes of a run's windows say: which window stands out, and which sizes are a tail, a ramp or a schedule.

Several shapes are correct: a short window where an epoch ends, windows that only grow or only shrink, another size for
a while, and windows whose losses are weighted by what they hold. What remains is a window that stands out.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from gradaudit.history import AuditedUpdate
from gradaudit.rules.terms import losses_of


class Odd(NamedTuple):
    """The window that stands out.

    Attributes:
        kind: "first" or "last" (the sizes are those of a ramp without it), "long" (longer than its neighbours),
            "pattern" (the sizes repeat, and not as tails do), "cut" (two that make one), or "all" (none is frequent).
        place: Its place in the list.
        usual: The size of the windows around it.
    """

    kind: str
    place: int
    usual: int


def carried_over(windows: list[AuditedUpdate]) -> list[tuple[AuditedUpdate, int]]:
    """Windows that reach over the beginning of an epoch and hold more than those around, and what those hold."""
    over = []
    for place, window in enumerate(windows):
        if (len(window.epochs) > 1) and not window.stale:
            before = next((w.size for w in reversed(windows[:place]) if not (len(w.epochs) > 1)), 0)
            after = next((w.size for w in windows[place:] if not (len(w.epochs) > 1)), 0)
            usual = max(before, after)
            if 0 < usual < window.size and _follows_its_size(window, _some_of(windows, usual)):
                over.append((window, usual))
    return over


def unexplained(windows: list[AuditedUpdate]) -> tuple[list[AuditedUpdate], int]:
    """The windows whose sizes need an explanation, and how many micro-batches a window is meant to hold.

    A window whose losses are weighted by what it holds was planned, whatever its size.
    """
    usual = _divisor(windows) or most_frequent([w.size for w in windows])
    if not windows:
        return windows, usual
    others = _some_of(windows, usual)
    return [w for w in windows if w.size == usual or _follows_its_size(w, others)], usual


def mean_size(windows: list[AuditedUpdate]) -> int:
    """The number that divides every loss, if windows of a pattern hold so many on average, and none of them does.

    A mean over rows of several numbers may have been multiplied by how many these are. 0 if that isn't so.
    """
    sizes = [w.size for w in windows]
    period = _period(sizes)
    mean, rest = divmod(sum(sizes[:period]), period or 1)
    calls = [call for w in windows[:50] for call in w.micro_batches]
    if rest or mean < 2 or mean in sizes or len({call.kinds for call in calls}) != 1:
        return 0
    factors = {round(term.coefficient * mean, 4) for call in calls for term in call.terms}
    return mean if len(factors) == 1 and factors <= {1, *(term.row for term in calls[0].terms)} else 0


def odd_window(sizes: Sequence[int], ends: set[int], usual: int) -> Odd | None:
    """The first window that stands out.

    Args:
        sizes: Micro-batches in each window.
        ends: The places of windows that are known to end an epoch.
        usual: Micro-batches in most windows.

    >>> odd_window([5, 4, 4, 4], set(), 4), odd_window([4, 8, 4, 4], set(), 4)
    (Odd(kind='first', place=0, usual=4), Odd(kind='long', place=1, usual=4))
    >>> odd_window([4, 4, 2, 4, 4, 2], set(), 4), odd_window([1, 1, 2, 2, 4, 4], set(), 4)
    (None, None)
    """
    places = [k for k in range(len(sizes)) if not _is_tail(sizes, k, ends, usual)]
    levels = [(size, list(group)) for size, group in groupby(places, key=sizes.__getitem__)]
    if len(levels) < 2:
        return None
    distinct = sorted({size for size, _ in levels})
    if [size for size, _ in levels] in (distinct, distinct[::-1]):
        return _end_of_a_ramp(levels)
    body = [sizes[k] for k in places]
    if body[0] != usual == body[1] and body.count(usual) >= max(2, len(body) / 2):
        return Odd("first", places[0], usual)
    if (period := _period(sizes)) and min(sizes[: period - 1]) < usual:
        return Odd("pattern", next(k for k, size in enumerate(sizes) if size < usual), usual)
    if max(Counter(sizes).values()) <= len(sizes) / 3 and len(sizes) >= 6:
        return Odd("all", 0, usual)
    return _between(levels)


def of_any_length(sizes: Sequence[int], usual: int) -> bool:
    """Are windows longer than usual by several amounts, or some longer and some shorter, as episodes are?

    A step that is left out doubles a window, what is left over at an epoch's end adds the same to each, and a first
    window may be off by one.

    >>> of_any_length([5, 9, 5, 5, 8], 5), of_any_length([5, 6, 5, 5, 4, 5], 5), of_any_length([1, 2, 1, 1, 7], 1)
    (True, True, True)
    >>> of_any_length([4, 8, 4, 4, 12, 4], 4), of_any_length([4, 4, 6, 4, 6, 4, 4], 4), of_any_length([5, 4, 4, 2], 4)
    (False, False, False)
    """
    longer = {size for size in sizes[1:] if size > usual and (usual == 1 or size % usual)}
    shorter = {size for size in sizes[1:-1] if size < usual}
    return len(longer) > 1 or bool(longer and shorter)


def most_frequent(sizes: Sequence[int]) -> int:
    """Of two that are as frequent, the larger; 0 if there are none.

    >>> most_frequent([4, 4, 1, 1, 2]), most_frequent([])
    (4, 0)
    """
    counts = Counter(sizes)
    return max(counts, key=lambda size: (counts[size], size), default=0)


def around(sizes: Sequence[int], place: int, count: int) -> range:
    """The places of so many around one; more on one side where there are fewer on the other.

    >>> around([4, 4, 8, 4, 4, 4], 2, 3), around([8, 4, 4, 4], 0, 3)
    (range(1, 4), range(0, 3))
    """
    first = max(0, min(place - count // 2, len(sizes) - count))
    return range(first, min(first + count, len(sizes)))


def _is_tail(sizes: Sequence[int], k: int, ends: set[int], usual: int) -> bool:
    """Short where an epoch is known to end, at the end of the run, or between two windows that are alike."""
    before = sizes[k - 1] if k else 0
    after = sizes[k + 1] if k + 1 < len(sizes) else 0
    if not after:
        return sizes[k] < before and sizes[k] != usual
    if k in ends and sizes[k] < max(before, after):
        return True
    steady = before == after or (sizes[k - 2 : k - 1] == [before] and sizes[k + 2 : k + 3] == [after])
    return sizes[k] < min(before, after, usual) and steady


def _end_of_a_ramp(levels: list[tuple[int, list[int]]]) -> Odd | None:
    """Of sizes that only grow, or only shrink: a first or a last one that stands alone against a single other size."""
    (first, early), (second, late), *more = levels
    if not more and len(early) == 1 < len(late):
        return Odd("first", early[0], second)
    if not more and len(late) == 1 < len(early) and second > first:
        return Odd("last", late[0], first)
    return None


def _between(levels: list[tuple[int, list[int]]]) -> Odd | None:
    """One window that is longer than those on both sides, or two short ones that add up to one of them."""
    for (before, _), (size, places), (after, _) in zip(levels, levels[1:], levels[2:], strict=False):
        if len(places) == 1 and size > max(before, after):
            return Odd("long", places[0], max(before, after))
    flat = [(size, place) for size, places in levels for place in places]
    for (before, _), (one, place), (two, _), (after, _) in zip(flat, flat[1:], flat[2:], flat[3:], strict=False):
        if one + two == before == after:
            return Odd("cut", place, before)
    return None


def _period(sizes: Sequence[int]) -> int:
    """After how many windows the sizes repeat, as they do if epochs are alike; 0 if they do not."""
    periods = range(2, len(sizes) // 2 + 1)
    return next((p for p in periods if sizes[p:] == sizes[:-p] and len(set(sizes)) > 1), 0)


def _divisor(windows: list[AuditedUpdate]) -> int:
    """The number that every loss is divided by, if windows of that size exist; else 0."""
    coefficients = {
        round(term.coefficient, 9) for w in windows[:50] for terms in losses_of(w) or [[]] * 2 for term in terms
    }
    (share,) = coefficients if len(coefficients) == 1 else (1.0,)
    n = round(1 / share) if 0 < share < 0.6 else 0
    return n if n and abs(share * n - 1) < 1e-6 and sum(w.size == n for w in windows) > 1 else 0


def _follows_its_size(window: AuditedUpdate, others: list[AuditedUpdate]) -> bool:
    """Does a window count more than others of one size, or hold more samples, as it holds more micro-batches?"""
    excess = abs(window.size / others[0].size - 1)
    for amount, usual in zip(_amounts(window), zip(*map(_amounts, others), strict=True), strict=True):
        known = [value for value in usual if value]
        if amount and known and abs(amount * len(known) / sum(known) - 1) < excess / 2:
            return False
    return True


def _some_of(windows: list[AuditedUpdate], size: int) -> list[AuditedUpdate]:
    return [w for w in windows if w.size == size][:20]


def _amounts(window: AuditedUpdate) -> tuple[float | None, float | None]:
    """What the window's losses add up to, and its samples or tokens; None where that cannot be known."""
    terms = (losses_of(window) or [[]])[0]
    counts = [term.count for term in terms]
    items = sum(counts) if terms and None not in counts else None
    if terms and terms[0].reduction == "mean":
        return sum(term.coefficient for term in terms), items
    weights = [term.per_item for term in terms]
    known = items is not None and None not in weights
    if not known:
        return sum(term.coefficient for term in terms) or None, None
    return sum(w * c for w, c in zip(weights, counts, strict=True)), items
