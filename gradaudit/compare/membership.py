"""Which gradients each step used: too many, too few, or none."""

from bisect import bisect
from collections.abc import Iterator
from itertools import pairwise
from math import isfinite

from gradaudit.callsite import short
from gradaudit.compare.rules import ERROR, UNDECIDED, Difference, rule
from gradaudit.history import AuditedLedger, AuditedUpdate, History, count_noun
from gradaudit.lines import condition_of

_OVERWRITTEN = "zero with set_to_none=False, and fill .grad with zeros before the first window, so it keeps its memory"

# Used again


@rule("stale-gradients")
def stale(history: History) -> Iterator[Difference]:
    """Gradients that an earlier step has used as well.

    Symptom: Learns faster at a small learning rate, diverges at a usual one.
    Cause: Each backward adds to .grad, and a step leaves it as it was, so gradients that nothing clears count again in
        every later update.
    Fix: Zero between each step and the next backward, also after a skipped step.
    Wrong:
        for x, y in loader:
            criterion(model(x), y).backward()
            optimizer.step()
    Correct:
        for x, y in loader:
            criterion(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    Reported: wenet-e2e/wekws/issues/72, IDEA-Research/DN-DETR/issues/19, ajbrock/BigGAN-PyTorch/issues/25
    """
    for ledger in history.stepped:
        if again := [update for update in ledger.updates if update.stale]:
            first, used = again[0], count_noun(again[0].stale, "backward call")
            text = f"update {first.number} used the gradients of {used} that an earlier step had already used; "
            text += f"{len(again)} of {count_noun(ledger.made, 'update')} do so"
            fix = _two_steps_in_a_row(ledger, first)
            yield Difference("stale", ledger, first.where, text, again, fix=fix, updates_affected=len(again))


def _two_steps_in_a_row(ledger: AuditedLedger, second: AuditedUpdate) -> str | None:
    """What to do where the second of two steps found what the first had used, or nothing if that was zeroed."""
    place = ledger.updates.index(second)
    first = ledger.updates[place - 1]
    new = second.fresh or second.assigned or second.skipped or second.came_as_zeros or second.zeros
    if not place or new or not first.fresh:
        return None
    if first.where == second.where:
        return "two steps follow each other: let the line step only after a backward pass"
    return f"two steps follow each other, at {short(first.where)} and {short(second.where)}: remove one of them"


# Never used


@rule("discarded-gradients")
def discarded(history: History) -> Iterator[Difference]:
    """Gradients that were zeroed, or written over, before any step used them.

    Symptom: Learns slowly or not at all, and N makes no difference.
    Cause: zero_grad() runs between a backward and the step that should use its gradient, as at the start of every
        micro-batch. Or each backward writes to the same memory, as in a CUDA graph, and .grad lies there too.
    Fix: Zero after the step, and nowhere inside a window.
    Wrong:
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            (criterion(model(x), y) / n).backward()
            if (i + 1) % n == 0:
                optimizer.step()
    Correct:
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y) / n).backward()
            if (i + 1) % n == 0:
                optimizer.step()
                optimizer.zero_grad()
    Reported: bytetriper/RAE/issues/67, ultralytics/ultralytics/pull/11217, pytorch/pytorch/issues/181723
    """
    for ledger in history.ledgers:
        calls = history.calls_of(ledger)
        over = next((call for call in calls if call.overwritten), None)
        if over is not None:
            text = f"backward call {over.number} wrote the gradients of {count_noun(over.overwritten, 'parameter')} "
            text += "over what was in .grad, as a CUDA graph does, before it was added"
            numbers = {"first": over.number, "overwritten": over.overwritten}
            yield Difference("overwritten", ledger, over.where, text, fix=_OVERWRITTEN, **numbers)
        pairs = [(zeroing, call) for zeroing, call in ledger.lost_calls if _counts(history, ledger, zeroing)]
        if pairs:
            zeroings, lost = zip(*pairs, strict=True)
            total = count_noun(len(calls), "backward call")
            text = f"the gradients of {len(lost)} of {total} were zeroed before any step used them"
            numbers = {"discarded": len(lost), "backward_calls": len(calls), "first": lost[0].number}
            yield Difference("discarded", ledger, zeroings[0].where, text, (), lost, about=zeroings, **numbers)


def _counts(history: History, ledger: AuditedLedger, zeroing) -> bool:
    """Not what a failed script may have cleaned up at its end, nor zeros, nor a loss that was no number."""
    cleaned_up = history.failed and zeroing.after == ledger.made and zeroing is ledger.lost[-1]
    values = [float(call.value) for call in zeroing.calls if call.value is not None]
    return not (cleaned_up or zeroing.were_zeros) and all(map(isfinite, values))


@rule("leftover-gradients")
def left_over(history: History) -> Iterator[Difference]:
    """Gradients that were still in .grad at the end, and that no step had used.

    Symptom: Fewer updates than batches / N, rounded up.
    Cause: The number of micro-batches isn't a multiple of N, and nothing steps after the last of an epoch: they are
        lost, or join the next epoch's first update.
    Fix: Make an update from the short window at every epoch's end.
    Wrong:
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y) / n).backward()
            if (i + 1) % n == 0:
                optimizer.step()
                optimizer.zero_grad()
    Correct:
        for window in windows(loader, n):  # the last may be shorter
            for x, y in window:
                (criterion(model(x), y) / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
    Reported: timoschick/pet/issues/36, meta-pytorch/torchtune/pull/2745
    """
    for ledger in history.ledgers if not history.failed else ():
        if calls := ledger.left_over:
            last, total, fix = ledger.updates[-1:], len(history.calls_of(ledger)), None
            where = next((condition_of(update.where) for update in last), None) or calls[-1].where
            if last and len(calls) > 2 * history.size(ledger) and len(calls) >= total / 2:  # it is no tail
                fix = f"the last step, on line {last[0].where.rpartition(':')[2]}, came long before the end: let its "
                fix += "condition count micro-batches; a count of updates stands still as soon as no update is made"
            text = f"no step used the gradients of the last {count_noun(len(calls), 'backward call')} of the run"
            yield Difference("left over", ledger, where, text, (), calls, fix=fix, backward_calls=len(calls))


@rule("empty-step")
def empty(history: History) -> Iterator[Difference]:
    """Steps that found no gradient.

    Symptom: Weights stand still; before the step there is no gradient.
    Cause: The step comes before the backward or after the zeroing, or a window holds no target at all; momentum and
        weight decay still act.
    Fix: Backward, step, zero, in this order.
    Wrong:
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
    Correct:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    Reported: sacmehta/EdgeNets/issues/14, lightseekorg/TorchSpec/pull/33
    """
    for ledger in history.stepped:
        found = [u for u in ledger.updates if not (u.held or u.assigned or u.skipped)]
        only_the_first = [update.number for update in found] == [1] and ledger.made > 1
        if not found or only_the_first or not ledger.trained or _harmless(history, ledger, found):
            continue
        masked = any(u.zeros and {t.count for call in u.zeros for t in call.terms} == {0} for u in found)
        zeros = all(u.came_as_zeros or u.zeros for u in found)
        kind, level, fix = "empty", ERROR, _two_steps_in_a_row(ledger, found[0])
        text = f"{len(found)} of {count_noun(ledger.made, 'step')} found no gradient"
        if zeros:
            kind, level = "empty, zeros", ERROR if masked else UNDECIDED  # or a margin is kept
            text += " other than zeros" + ", as from a loss without a target" * masked
            fix = "skip the step of a window that holds nothing: momentum and weight decay would still act"
        numbers = {"steps": ledger.made, "empty": [update.number for update in found[:20]]}
        yield Difference(kind, ledger, found[0].where, text, found, fix=fix, level=level, **numbers)


def _harmless(history: History, ledger: AuditedLedger, found: list[AuditedUpdate]) -> bool:
    """Every .grad was None, which changes nothing, and no gradient of it was lost or went elsewhere."""
    missed = ledger.lost_calls or ledger.left_over or trained_elsewhere(history, ledger)
    return all(update.dtype is None for update in found) and not missed


def trained_elsewhere(history: History, ledger: AuditedLedger) -> bool:
    """Do parameters of no optimizer have the shapes of those that never received a gradient here?

    Where some of this ledger's did, the others are only known to have been replaced if nothing else is without one.
    """
    never, unowned = ledger.never, history.unowned_shapes
    alike = never <= unowned if never.total() == ledger.trained else never == unowned
    return bool(history.unowned[0] and never) and alike


# What doubts ask of calls that no step has used


def useful_sites(history: History, ledger: AuditedLedger) -> set[tuple]:
    """From where backward calls come that reach a step of this ledger, or are used by nobody knows what."""
    return {call.site for call in history.calls if call.used and (ledger in call.users or not call.used_by)}


def whole_windows(ledger: AuditedLedger, dropped: list[list]) -> bool:
    """Were as many backward calls dropped each time as the windows right before and after hold, and only sometimes?

    A zeroing in every micro-batch comes between all windows.
    """
    updates = ledger.filled
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
