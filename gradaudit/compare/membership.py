"""Which gradients each step used: too many, too few, or none."""

from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from gradaudit.callsite import short
from gradaudit.compare import Difference
from gradaudit.history import AuditedRecord, AuditedUpdate, History
from gradaudit.lines import condition_of

# Used again


def stale(history: History) -> Iterator[Difference]:
    """Gradients that an earlier step has used as well."""
    for record in history.stepped:
        names = "reused", "stale", "uncleared"
        reused, again, partly = ([update for update in record.updates if getattr(update, name)] for name in names)
        if reused:
            yield Difference("reused", record, reused[0].where, reused, updates_affected=len(reused))
        elif again:
            yield _used_again(record, again)
        elif partly:
            (parameters, names), kept = record.uncleared, partly[0].uncleared
            listed = f" ({', '.join(names)}{', ...' * (kept > len(names))})" if names else ""
            numbers = {"parameters": parameters, "stale_parameters": kept, "updates_affected": len(partly)}
            yield Difference("stale in part", record, partly[0].where, partly, names=listed, **numbers)
        yield from _from_before_the_loop(history, record)


def _used_again(record: AuditedRecord, again: list[AuditedUpdate]) -> Difference:
    first = again[0]
    kind = "stale, given" if record.given_to else "stale" if first.fresh else "stale, two steps"
    numbers = {"again": first.stale, "updates_affected": len(again)}
    held = [update.held for update in record.updates][:20]
    fix, taker = _two_steps_in_a_row(record, first), record.given_to and record.given_to.name
    return Difference(
        kind, record, first.where, again, fix=fix, taker=taker, backward_calls_held_at_each_step=held, **numbers
    )


def _two_steps_in_a_row(record: AuditedRecord, second: AuditedUpdate) -> str:
    """What to do where the second of two steps found what the first had used, or nothing if that was zeroed."""
    place = record.updates.index(second)
    first = record.updates[place - 1]
    new = second.fresh or second.assigned or second.skipped or second.came_as_zeros or second.zeros
    if not place or new or not first.fresh:
        return ""
    if first.where == second.where:
        return f"{_line(second.where, second)} steps twice with no backward between: let it step only after a backward"
    lines = " and ".join(_line(update.where, second) for update in (first, second))
    return f"two steps follow each other, at {lines}: remove one of them"


def _line(where: str, update: AuditedUpdate) -> str:
    """The line alone, if the file is that of the update."""
    file, _, line = where.rpartition(":")
    return f"line {line}" if file == update.where.rpartition(":")[0] else short(where)


def _from_before_the_loop(history: History, record: AuditedRecord) -> Iterator[Difference]:
    """A backward before the loop, whose gradients the first window inherits: its line is never seen again."""
    updates = record.filled
    if len(updates) <= 2 or not set.intersection(*({call.line for call in each.fresh} for each in updates)):
        return
    lines = Counter(call.line for call in history.calls_of(record))
    calls = updates[0].fresh
    if lines[calls[0].line] == 1 and updates[0].size > updates[1].size:  # or it is the first of the window's
        numbers = {"held": len(calls), "usual": updates[1].size}
        yield Difference("from before", record, calls[0].where, updates[:1], calls, **numbers)


# Never used


def discarded(history: History) -> Iterator[Difference]:
    """Gradients that were zeroed, or written over, before any step used them."""
    for record in history.records:
        calls = history.calls_of(record)
        over = next((call for call in calls if call.overwritten), None)
        if over is not None:
            yield Difference("overwritten", record, over.where, first=over.number, overwritten=over.overwritten)
        pairs = [(zeroing, call) for zeroing, call in record.lost_calls if _counts(history, record, zeroing)]
        if pairs:
            zeroings, lost = zip(*pairs, strict=True)
            numbers = {"discarded": len(lost), "backward_calls": len(calls), "first": lost[0].number}
            where = zeroings[0].where
            yield Difference("discarded", record, where, (), lost, zeroings, backward=lost[0].where, **numbers)


def _counts(history: History, record: AuditedRecord, zeroing) -> bool:
    """Not what a failed script may have cleaned up at its end, nor zeros, nor a loss that was no number."""
    cleaned_up = history.failed and zeroing.after == record.made and zeroing is record.lost[-1]
    return not (cleaned_up or zeroing.were_zeros or any(call.not_a_number for call in zeroing.calls))


def left_over(history: History) -> Iterator[Difference]:
    """Gradients that were still in .grad at the end, and that no step had used."""
    for record in history.records if not history.failed else ():
        if calls := record.left_over:
            last, total = record.updates[-1:], len(history.calls_of(record))
            where = next((condition_of(update.where) for update in last), None) or calls[-1].where
            stopped = bool(last) and len(calls) > 2 * history.size(record) and len(calls) >= total / 2  # it is no tail
            kind = "left over" if not stopped else "left over, one step" if record.made == 1 else "left over, stopped"
            line = last[0].where.rpartition(":")[2] if last else ""
            yield Difference(kind, record, where, (), calls, line=line, backward_calls=len(calls))


def empty(history: History) -> Iterator[Difference]:
    """Steps that found no gradient."""
    for record in history.stepped:
        found = [u for u in record.updates if not (u.held or u.assigned or u.reused or u.skipped)]
        if not found or not record.trained or _harmless(history, record, found):
            continue
        masked = any(u.zeros and all(call.without_targets for call in u.zeros) for u in found)
        zeros = all(u.came_as_zeros or u.zeros for u in found)
        kind = "empty, masked" if zeros and masked else "empty, zeros" if zeros else "empty"
        if [update.number for update in found] == [1] and record.made > 1:
            kind = "empty at first"
        numbers = {"steps": record.made, "empty": [update.number for update in found[:20]]}
        fix = "" if zeros else _two_steps_in_a_row(record, found[0])
        yield Difference(kind, record, found[0].where, found, fix=fix, found=len(found), **numbers)


def _harmless(history: History, record: AuditedRecord, found: list[AuditedUpdate]) -> bool:
    """Every .grad was None, which changes nothing, and no gradient of it was lost or went elsewhere."""
    missed = record.lost_calls or record.left_over or trained_elsewhere(history, record)
    return all(update.no_gradients for update in found) and not missed


def trained_elsewhere(history: History, record: AuditedRecord) -> bool:
    """Do parameters of no optimizer have the shapes of those that never received a gradient here?

    Where some of this record's did, the others are only known to have been replaced if nothing else is without one.
    """
    never, unowned = record.never, history.unowned_shapes
    alike = never <= unowned if never.total() == record.trained else never == unowned
    return bool(history.unowned[0] and never) and alike


# What doubts ask of calls that no step has used


def useful_sites(history: History, record: AuditedRecord) -> set[tuple]:
    """From where backward calls come that reach a step of this record, or are used by nobody knows what."""
    return {call.site for call in history.calls if call.used and (record in call.users or not call.used_by)}


def whole_windows(record: AuditedRecord, dropped: list[list]) -> bool:
    """Were as many backward calls dropped each time as the windows right before and after hold, and only sometimes?

    A zeroing in every micro-batch comes between all windows.
    """
    updates = record.filled
    numbers = sorted(calls[0].number for calls in dropped)
    undisturbed = sum(
        bisect(numbers, before.fresh[-1].number) == bisect(numbers, after.fresh[0].number)
        for before, after in pairwise(updates)
    )
    for calls in dropped:
        nearby = [update.size for update in updates if update.fresh[-1].number < calls[0].number][-1:]
        nearby += [update.size for update in updates if update.fresh[0].number > calls[0].number][:1]
        if len(calls) != max(nearby, default=0):
            return False
    return undisturbed > len(updates) / 4
