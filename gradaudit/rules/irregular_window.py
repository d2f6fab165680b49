"""How many micro-batches each window holds: as many as the others, or as were declared.

Several sizes are those of correct loops: a short window where an epoch ends, windows that only grow or only shrink,
and windows whose losses are weighted by what they hold. What remains stands out.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from gradaudit.columns import columns_of
from gradaudit.history import AuditedLedger, AuditedUpdate, History, count_noun, most_frequent
from gradaudit.lines import condition_of
from gradaudit.rules.rule import Finding, by_framework, finding, made_updates, rule

_SOME = 20  # windows that others are compared with
_ACCUMULATE = (
    "pass Accelerator(gradient_accumulation_steps={}), and put each micro-batch into "
    "`with accelerator.accumulate(model):`, which counts"
)
_NESTED = (
    "each accumulate() counts a micro-batch, also one inside another: name all models in one, "
    "accelerator.accumulate(model, other)"
)


class Odd(NamedTuple):
    """The window that stands out.

    Attributes:
        kind: "first" (the first one, with one micro-batch more or less), "long" (longer than its neighbours), or
            "pattern" (the sizes repeat, and not as tails do).
        index: Its place in the list.
        usual: The size of the windows around it.
    """

    kind: str
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
        nested = who == "told to Accelerate" and all(meant % size == 0 for size, meant in pairs)
        why, fix = f"{who}: {declared[different[0]]}", _NESTED if nested else None if different == [0] else ""
        yield _irregular(ledger, updates, different[0], why, fix=fix)


def _uneven(history: History, ledger: AuditedLedger, updates: list[AuditedUpdate]) -> Iterator[Finding]:
    judged, odd = _odd_window(ledger, updates)
    if odd is None or _is_a_tail_carried_over(ledger, judged, odd):
        return
    window, n, fix = judged[odd.index], odd.usual, None
    unknown = any(call.epoch is None for call in window.fresh) or len(window.epochs) > 1
    why = {
        "long": f"those around it {n}; a step was left out" + ", or an epoch ended without one" * unknown,
        "pattern": "in a pattern that repeats, and not only as a tail",
        "first": f"most hold {n}",
    }[odd.kind]
    if odd.kind == "first":
        fix = by_framework(history, ledger, window.where, accelerate=_ACCUMULATE.format(max(2, n)))
    if odd.kind == "long":
        fix = "count only micro-batches that ran backward, and let nothing jump over the step"
    usual = next(update for update in updates if update.size == n)
    certain = odd.kind == "first" and {update.size for update in updates[1:-1]} <= {n}
    reasons = () if certain else why_of_any_size(ledger, window, usual)
    yield _irregular(ledger, updates, updates.index(window), why, reasons, fix)


def why_of_any_size(ledger: AuditedLedger, window: AuditedUpdate, usual: AuditedUpdate) -> Iterator[str]:
    """Why a window that is longer or shorter than `usual` may be meant."""
    columns, sites = columns_of(usual), {call.site for call in usual.fresh}
    known = columns and columns[0].reduction != "unknown" and sites >= {call.site for call in window.fresh}
    if not known or of_any_length(ledger, usual.size):
        yield "a window may be an episode, or hold one loss more than others"


def of_any_length(ledger: AuditedLedger, usual: int) -> bool:
    """Whether windows are longer than usual by several amounts, as episodes are. (A step left out doubles a window.)"""
    sizes = [update.size for update in countable(ledger)]
    return len({size for size in sizes[1:] if size > usual and (usual == 1 or size % usual)}) > 1


def _irregular(
    ledger: AuditedLedger, updates: list[AuditedUpdate], index: int, why: str, reasons=(), fix: str | None = None
) -> Finding:
    window, sizes = updates[index], [update.size for update in updates]
    where, shown = condition_of(window.where) or window.where, [sizes[k] for k in around(sizes, index, 20)]
    text = f"update {window.number} holds {count_noun(window.size, 'micro-batch')}, {why}: {_listed(sizes, index)}"
    return finding(ledger, where, text, [window], reasons, fix=fix, sizes=shown)


def _listed(sizes: list[int], place: int) -> str:
    """The sizes around one place.

    >>> _listed([4, 4, 8, 4], 2), _listed([4] * 20 + [8] + [4] * 20, 20)
    ('4, 4, 8, 4', '..., 4, 4, 4, 4, 8, 4, 4, 4, 4, ...')
    """
    shown = around(sizes, place, 9)
    before, after = ["..."] * (shown[0] > 0), ["..."] * (shown[-1] + 1 < len(sizes))
    return ", ".join([*before, *(str(sizes[k]) for k in shown), *after])


def around(sizes: Sequence[int], place: int, count: int) -> range:
    """The places of so many around one; more on one side where there are fewer on the other.

    >>> around([4, 4, 8, 4, 4, 4], 2, 3), around([8, 4, 4, 4], 0, 3)
    (range(1, 4), range(0, 3))
    """
    first = max(0, min(place - count // 2, len(sizes) - count))
    return range(first, min(first + count, len(sizes)))


# Tails in the next epoch


def carried_over(ledger: AuditedLedger) -> Iterator[tuple[AuditedUpdate, int, AuditedUpdate | None]]:
    """The first window that also holds what was left over at the end of the epoch before, if there is one.

    Yields:
        The window; how many micro-batches others hold; and one of these, or None if the epoch's end was seen.
    """
    updates = countable(ledger)
    if over := _over_an_epochs_end(updates):
        yield *over[0], None
        return
    judged, odd = _odd_window(ledger, updates)
    if odd is not None and _is_a_tail_carried_over(ledger, judged, odd):
        yield judged[odd.index], odd.usual, next(update for update in updates if update.size == odd.usual)


def _over_an_epochs_end(updates: list[AuditedUpdate]) -> list[tuple[AuditedUpdate, int]]:
    """Windows that reach over the beginning of an epoch and hold more than those around, and what those hold."""
    over = []
    for place, update in enumerate(updates):
        if len(update.epochs) > 1 and not update.stale:
            before = next((u.size for u in reversed(updates[:place]) if len(u.epochs) < 2), 0)
            after = next((u.size for u in updates[place:] if len(u.epochs) < 2), 0)
            usual = max(before, after)
            if 0 < usual < update.size and _follows_its_size(update, _some_of(updates, usual)):
                over.append((update, usual))
    return over


def _is_a_tail_carried_over(ledger: AuditedLedger, updates: list[AuditedUpdate], odd: Odd) -> bool:
    """Where no epochs were seen: is it too long by as much as another window is, or as the run's end has left over?"""
    excess = updates[odd.index].size - odd.usual
    if odd.kind != "long" or excess >= odd.usual or updates[odd.index].fresh[0].epoch is not None:
        return False
    as_long = sum(update.size == odd.usual + excess for update in updates)
    return as_long > 1 or len(ledger.left_over) == excess


# Which sizes need an explanation


def _odd_window(ledger: AuditedLedger, updates: list[AuditedUpdate]) -> tuple[list[AuditedUpdate], Odd | None]:
    """The window that stands out, among those that hold nothing of the epoch before and lost nothing to a zeroing."""
    cut = {zeroing.calls[-1].number for zeroing, _ in ledger.lost_calls}
    over, whole, before = {id(update) for update, _ in _over_an_epochs_end(updates)}, [], 0
    for update in updates:
        if cut.isdisjoint(range(before + 1, update.fresh[0].number)) and id(update) not in over:
            whole.append(update)
        before = update.fresh[-1].number
    usual = most_frequent(update.size for update in whole)
    alike = _some_of(whole, usual)
    whole = [update for update in whole if update.size == usual or _follows_its_size(update, alike)]
    ends = {k for k, (u, after) in enumerate(pairwise(whole)) if u.fresh[-1].epoch != after.fresh[0].epoch}
    return whole, odd_window([update.size for update in whole], ends, usual)


def odd_window(sizes: Sequence[int], ends: set[int], usual: int) -> Odd | None:
    """The first window that stands out.

    Args:
        sizes: Micro-batches in each window.
        ends: The places of windows that are known to end an epoch.
        usual: Micro-batches in most windows.

    >>> odd_window([5, 4, 4, 4], set(), 4), odd_window([4, 8, 4, 4], set(), 4)
    (Odd(kind='first', index=0, usual=4), Odd(kind='long', index=1, usual=4))
    >>> odd_window([4, 4, 2, 4, 4, 2], set(), 4), odd_window([1, 1, 2, 2, 4, 4], set(), 4)
    (None, None)
    """
    body = [k for k in range(len(sizes)) if not _is_tail(sizes, k, ends, usual)]
    levels = [(size, list(places)) for size, places in groupby(body, key=sizes.__getitem__)]
    order = [size for size, _ in levels]
    if len(levels) < 2:
        return None
    ramp = order in (sorted(set(order)), sorted(set(order), reverse=True))
    is_usual = 2 * sum(sizes[k] == usual for k in body) >= max(len(body), 4)
    if is_usual and sizes[body[0]] != usual == sizes[body[1]] and (len(levels) == 2 or not ramp):
        return Odd("first", body[0], usual) if order[0] <= usual + 1 else None
    if ramp:
        return None
    if (period := _period(sizes)) and min(sizes[: period - 1]) < usual:
        return Odd("pattern", next(k for k, size in enumerate(sizes) if size < usual), usual)
    for (before, _), (size, long), (after, _) in zip(levels, levels[1:], levels[2:], strict=False):
        if is_usual and len(long) == 1 and size > max(before, after):
            return Odd("long", long[0], max(before, after))
    return None


def _is_tail(sizes: Sequence[int], k: int, ends: set[int], usual: int) -> bool:
    """Short where an epoch is known to end, at the end of the run, or between two windows that are alike."""
    if k + 1 == len(sizes):
        return sizes[k] < sizes[k - 1] and sizes[k] != usual
    before, after = sizes[k - 1] if k else 0, sizes[k + 1]
    return sizes[k] < max(before, after) if k in ends else sizes[k] < min(before, after, usual) and before == after


def _period(sizes: Sequence[int]) -> int:
    """After how many windows the sizes repeat, as they do if epochs are alike; 0 if they do not."""
    periods = range(2, len(sizes) // 2 + 1)
    return next((p for p in periods if sizes[p:] == sizes[:-p] and len(set(sizes)) > 1), 0)


def _follows_its_size(update: AuditedUpdate, others: list[AuditedUpdate]) -> bool:
    """Whether a window counts more than others of one size, or hold more samples, as it holds more micro-batches?

    A window whose losses are weighted by what it holds was planned, whatever its size.
    """
    excess = abs(update.size / others[0].size - 1)
    for amount, usual in zip(_amounts(update), zip(*map(_amounts, others), strict=True), strict=True):
        known = [value for value in usual if value]
        if amount and known and abs(amount * len(known) / sum(known) - 1) < excess / 2:
            return False
    return True


def _some_of(updates: list[AuditedUpdate], size: int) -> list[AuditedUpdate]:
    return [update for update in updates if update.size == size][:_SOME]


def _amounts(update: AuditedUpdate) -> tuple[float | None, float | None]:
    """What the window's losses add up to, and its samples or tokens; None where that cannot be known."""
    columns = columns_of(update)
    if not columns:
        return None, None
    first = columns[0]
    items = None if None in first.counts else sum(first.counts)
    summed = first.reduction == "sum" and items is not None
    return first.weight if summed else first.share or None, items
