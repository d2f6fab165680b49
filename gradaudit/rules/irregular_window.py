"""How many micro-batches each window holds: as many as the others, or as were declared.

Several sizes are those of correct loops: a short window where an epoch ends, three or more sizes that only grow or only
shrink, and windows whose losses are weighted by what they hold. What remains stands out.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from math import isclose
from typing import NamedTuple

from gradaudit.columns import columns_of
from gradaudit.history import AuditedLedger, AuditedUpdate, History, count_noun, most_frequent
from gradaudit.lines import condition_of
from gradaudit.rules.rule import Finding, by_framework, finding, made_updates, rule

_SHOWN = 9  # sizes around the one that stands out
_ACCUMULATE = (
    "pass Accelerator(gradient_accumulation_steps={}) instead of dividing the losses, and put each micro-batch into "
    "`with accelerator.accumulate(model):`, which counts"
)
_NESTED = (
    "each accumulate() counts a micro-batch, also one inside another: name all models in one, "
    "accelerator.accumulate(model, other)"
)


class Odd(NamedTuple):
    """The window that stands out.

    Attributes:
        first: Whether it is the first one, with fewer micro-batches or one more; else it is longer than its neighbours.
        index: Its place in the list.
        usual: The size of the windows around it.
    """

    first: bool
    index: int
    usual: int


@rule("irregular-window", lambda history: len(made_updates(history)) > 1, "fewer than two windows were seen")
def irregular(history: History) -> Iterator[Finding]:
    """Windows that hold more micro-batches than the others, or fewer.

    Symptom: The first update comes early: windows of 1, N, N.
    Cause: The test for the step counts from 0, such as i % N == 0, or counts something else than the micro-batches of
        one window.
    Fix: Start the count with a window, and test (i + 1) % N == 0 if i starts at 0; or loop over windows.
    Known problems: Windows all of one wrong size are only seen if the right one is declared, by --window, or by
        Accelerate, transformers or Lightning.
    Wrong:
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y) / n).backward()
            if i % n == 0:
                optimizer.step()
                optimizer.zero_grad()
    Correct:
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y) / n).backward()
            if (i + 1) % n == 0:
                optimizer.step()
                optimizer.zero_grad()
    Reported: rasbt/LLMs-from-scratch/issues/299, huggingface/accelerate/issues/435
    """
    for ledger in history.stepped:
        updates = countable(ledger)
        if history.declared_for(ledger):
            yield from _not_as_declared(history, ledger, updates)
        elif len(updates) >= 2:
            yield from _uneven(history, ledger, updates)


def countable(ledger: AuditedLedger) -> list[AuditedUpdate]:
    """Windows of which it is known how many micro-batches they hold."""
    return [update for update in ledger.filled if not update.assigned]


def _not_as_declared(history: History, ledger: AuditedLedger, updates: list[AuditedUpdate]) -> Iterator[Finding]:
    """Too large anywhere, or too small where it can't be the tail of an epoch."""
    who, steps = history.declared_for(ledger)
    declared = [([steps[0][1]] + [n for start, n in steps if start <= u.place])[-1] for u in updates]
    pairs = list(zip([update.size for update in updates], declared, strict=True))
    different = [k for k, (size, meant) in enumerate(pairs) if size > meant]
    short = [k for k, (size, meant) in enumerate(pairs) if size < meant]
    if short and ((short[0] == 0 and len(pairs) > 1) or len(short) > len(pairs) / 2):
        different = sorted(different + short)
    if different:
        why, fix = f"{who}: {declared[different[0]]}", None if different == [0] else ""
        nested = len(short) > len(pairs) / 2 and all(meant % size == 0 for size, meant in pairs)
        fix = _NESTED if who == "told to Accelerate" and nested and not ledger.lost_calls else fix
        yield _irregular(ledger, updates, different[0], why, fix)


def _uneven(history: History, ledger: AuditedLedger, updates: list[AuditedUpdate]) -> Iterator[Finding]:
    judged, odd = _odd_window(updates)
    if odd is None or _is_a_tail_carried_over(ledger, judged, odd):
        return
    window, n = judged[odd.index], odd.usual
    if odd.first:
        why = f"most hold {n}"
        fix = by_framework(history, ledger, window.where, accelerate=_ACCUMULATE.format(n)) if n > 1 else None
    else:
        why = f"those around it {n}; a step was left out, or an epoch ended without one"
        fix = "count only micro-batches that ran backward, and let nothing jump over the step"
    yield _irregular(ledger, updates, updates.index(window), why, fix)


def _irregular(ledger: AuditedLedger, updates: list[AuditedUpdate], index: int, why: str, fix: str | None) -> Finding:
    window, first = updates[index], max(0, min(index - _SHOWN // 2, len(updates) - _SHOWN))
    sizes = [update.size for update in updates[first : first + _SHOWN]]
    before, after = "..., " * (first > 0), ", ..." * (first + _SHOWN < len(updates))
    text = f"update {window.number} holds {count_noun(window.size, 'micro-batch')}, {why}: "
    text += f"{before}{', '.join(map(str, sizes))}{after}"
    return finding(ledger, condition_of(window.where) or window.where, text, [window], fix=fix, sizes=sizes)


# Tails in the next epoch


def carried_over(ledger: AuditedLedger) -> tuple[AuditedUpdate, int] | None:
    """The first window that also holds what was left over at the end of the epoch before, and the size of others."""
    updates = countable(ledger)
    if over := _over_an_epochs_end(updates):
        return over[0]
    judged, odd = _odd_window(updates)
    if odd is not None and _is_a_tail_carried_over(ledger, judged, odd):
        return judged[odd.index], odd.usual
    return None


def _over_an_epochs_end(updates: list[AuditedUpdate]) -> list[tuple[AuditedUpdate, int]]:
    """Windows that reach over the beginning of an epoch and hold more than those around, and what those hold."""
    over = []
    for place, update in enumerate(updates):
        if len(update.epochs) > 1 and not update.stale:
            before = [u.size for u in updates[:place] if len(u.epochs) < 2]
            after = [u.size for u in updates[place:] if len(u.epochs) < 2]
            usual = max([*before[-1:], *after[:1]], default=update.size)
            if usual < update.size:
                over.append((update, usual))
    return over


def _is_a_tail_carried_over(ledger: AuditedLedger, updates: list[AuditedUpdate], odd: Odd) -> bool:
    """Where no epochs were seen: is it too long by as much as another window is, or as the run's end has left over?"""
    size = updates[odd.index].size
    if odd.first or size >= 2 * odd.usual or updates[odd.index].fresh[0].epoch is not None:
        return False
    return sum(update.size == size for update in updates) > 1 or len(ledger.left_over) == size - odd.usual


# Which sizes need an explanation


def _odd_window(updates: list[AuditedUpdate]) -> tuple[list[AuditedUpdate], Odd | None]:
    """The window that stands out, among those that hold nothing of the epoch before and aren't weighted by their size.

    A window whose losses add up to what those of the others do was planned, whatever its size.
    """
    over = {update for update, _ in _over_an_epochs_end(updates)}
    whole = [update for update in updates if update not in over]
    usual = most_frequent(update.size for update in whole)
    share = next((_share(update) for update in whole if update.size == usual), None)
    whole = [u for u in whole if u.size == usual or share is None or not isclose(_share(u) or 0, share, rel_tol=0.01)]
    ends = {k for k, (u, after) in enumerate(pairwise(whole)) if u.fresh[-1].epoch != after.fresh[0].epoch}
    return whole, odd_window([update.size for update in whole], ends, usual)


def _share(update: AuditedUpdate) -> float | None:
    """The sum of the coefficients of its first loss, if that is known."""
    columns = columns_of(update)
    return columns[0].share if columns else None


def odd_window(sizes: Sequence[int], ends: set[int], usual: int) -> Odd | None:
    """The first window that stands out.

    Args:
        sizes: Micro-batches in each window.
        ends: The places of windows that are known to end an epoch.
        usual: Micro-batches in most windows.

    >>> odd_window([5, 4, 4, 4], set(), 4), odd_window([4, 8, 4, 4], set(), 4)
    (Odd(first=True, index=0, usual=4), Odd(first=False, index=1, usual=4))
    >>> odd_window([4, 4, 2, 4, 4, 2], set(), 4), odd_window([1, 1, 2, 2, 4, 4], set(), 4)
    (None, None)
    """
    body = [k for k in range(len(sizes)) if not _is_tail(sizes, k, ends, usual)]
    levels = [(size, list(places)) for size, places in groupby(body, key=sizes.__getitem__)]
    order = [size for size, _ in levels]
    ramp = order in (sorted(set(order)), sorted(set(order), reverse=True))
    is_usual = 2 * sum(sizes[k] == usual for k in body) >= max(len(body), 4)
    if not is_usual or len(levels) < 2:
        return None
    begins_otherwise = sizes[body[0]] != usual and sizes[body[1]] == usual
    if begins_otherwise and order[0] <= usual + 1 and (len(levels) == 2 or not ramp):
        return Odd(True, body[0], usual)
    for (before, _), (size, long), (after, _) in zip(levels, levels[1:], levels[2:], strict=False):
        if len(long) == 1 and size > max(before, after):
            return Odd(False, long[0], max(before, after))
    return None


def _is_tail(sizes: Sequence[int], k: int, ends: set[int], usual: int) -> bool:
    """Short where an epoch is known to end, at the end of the run, or between two windows that are alike."""
    before = sizes[k - 1] if k else 0
    after = sizes[k + 1] if k + 1 < len(sizes) else before
    return sizes[k] < max(before, after) if k in ends else sizes[k] < usual and sizes[k] < before == after
