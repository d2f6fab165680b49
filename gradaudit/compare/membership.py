"""Which gradients each step used: too many, too few, or none."""

from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from gradaudit.callsite import short
from gradaudit.compare.rules import ADVICE, ERROR, UNDECIDED, Difference, rule
from gradaudit.history import AuditedRecord, AuditedUpdate, History, count_noun
from gradaudit.lines import condition_of

_OVERWRITTEN = (
    "zero with set_to_none=False, so that .grad keeps memory of its own, and fill .grad with zeros before the first window; "
    "CUDA graphs (as in torch.compile's max-autotune) write every gradient to the same place"
)

# Used again


@rule("stale-gradients")
def stale(history: History) -> Iterator[Difference]:
    """Gradients that an earlier step has used as well.

    Symptom: Learns faster at a small learning rate, diverges at a usual one.
    Cause: Each backward adds to .grad, and a step leaves it as it was, so gradients that nothing clears count again in
        every later update.
    Fix: Zero between each step and the next backward, also after a skipped step.
    Reported: wenet-e2e/wekws/issues/72, IDEA-Research/DN-DETR/issues/19, ajbrock/BigGAN-PyTorch/issues/25
    """
    for record in history.stepped:
        names = "reused", "stale", "uncleared"
        reused, again, partly = ([update for update in record.updates if getattr(update, name)] for name in names)
        if found := reused or again or partly:
            first, numbers = found[0], {"updates_affected": len(found)}
            do_so = f"; {len(found)} of {count_noun(record.made, 'update')} do so"
        if reused:
            text = f"update {first.number} used gradients that were put into .grad before an earlier step, which had "
            fix = "put new gradients into .grad before each step, and set it to None after the step"
            yield Difference(
                "reused", record, first.where, f"{text}already used them{do_so}", reused, fix=fix, **numbers
            )
        elif again:
            yield _used_again(record, again, do_so)
        elif partly:
            (parameters, names), kept = record.uncleared, first.uncleared
            listed = f" ({', '.join(names)}{', ...' * (kept > len(names))})" if names else ""
            text = f"update {first.number} also used what an earlier step had used in {kept} of its "
            text += f"{count_noun(parameters, 'parameter')}{listed}: only the others were zeroed{do_so}"
            numbers |= {"parameters": parameters, "stale_parameters": kept}
            fix = "zero all that the optimizer holds: optimizer.zero_grad()"
            yield Difference("stale in part", record, first.where, text, partly, fix=fix, **numbers)
        yield from _from_before_the_loop(history, record)


def _used_again(record: AuditedRecord, again: list[AuditedUpdate], do_so: str) -> Difference:
    first, between = again[0], "" if again[0].fresh or record.given_to else " (no backward came between two steps)"
    text = f"update {first.number} used the gradients of {count_noun(first.stale, 'backward call')} that an earlier "
    fix = _two_steps_in_a_row(record, first)
    if record.given_to:
        taker = record.given_to.name
        fix = f"zero the model whose gradients are given to {taker}: zero_grad() of {taker} clears only its own"
    held = [update.held for update in record.updates][:20]
    numbers = {"updates_affected": len(again), "backward_calls_held_at_each_step": held}
    text += f"step had already used{between}{do_so}"
    return Difference("stale", record, first.where, text, again, fix=fix, **numbers)


def _two_steps_in_a_row(record: AuditedRecord, second: AuditedUpdate) -> str | None:
    """What to do where the second of two steps found what the first had used, or nothing if that was zeroed."""
    place = record.updates.index(second)
    first = record.updates[place - 1]
    new = second.fresh or second.assigned or second.skipped or second.came_as_zeros or second.zeros
    if not place or new or not first.fresh:
        return None
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
        text = f"update {updates[0].number} also holds the gradients of a backward call from before the loop"
        numbers = {"held": len(calls), "usual": updates[1].size}
        fix = "zero once before the first window, too"
        yield Difference("from before", record, calls[0].where, text, updates[:1], calls, fix=fix, **numbers)


# Never used


@rule("discarded-gradients")
def discarded(history: History) -> Iterator[Difference]:
    """Gradients that were zeroed, or written over, before any step used them.

    Symptom: Learns slowly or not at all, and N makes no difference.
    Cause: zero_grad() runs between a backward and the step that should use its gradient, as at the start of every
        micro-batch. Or each backward writes to the same memory, as in a CUDA graph, and .grad lies there too.
    Fix: Zero after the step, and nowhere inside a window.
    Reported: bytetriper/RAE/issues/67, ultralytics/ultralytics/pull/11217, pytorch/pytorch/issues/181723
    """
    for record in history.records:
        calls = history.calls_of(record)
        over = next((call for call in calls if call.overwritten), None)
        if over is not None:
            text = (
                f"backward call {over.number} brought the gradients of {count_noun(over.overwritten, 'parameter')} in "
            )
            text += "the memory in which .grad lay already: it had overwritten the sum that it was then added to"
            numbers = {"first": over.number, "overwritten": over.overwritten}
            yield Difference("overwritten", record, over.where, text, fix=_OVERWRITTEN, **numbers)
        pairs = [(zeroing, call) for zeroing, call in record.lost_calls if _counts(history, record, zeroing)]
        if pairs:
            zeroings, lost = zip(*pairs, strict=True)
            text = (
                f"the gradients of {len(lost)} of {count_noun(len(calls), 'backward call')} were zeroed before any step"
            )
            numbers = {"discarded": len(lost), "backward_calls": len(calls), "first": lost[0].number}
            numbers["backward"] = lost[0].where
            where, text = zeroings[0].where, f"{text} used them"
            yield Difference("discarded", record, where, text, (), lost, about=zeroings, **numbers)


def _counts(history: History, record: AuditedRecord, zeroing) -> bool:
    """Not what a failed script may have cleaned up at its end, nor zeros, nor a loss that was no number."""
    cleaned_up = history.failed and zeroing.after == record.made and zeroing is record.lost[-1]
    return not (cleaned_up or zeroing.were_zeros or any(call.not_a_number for call in zeroing.calls))


@rule("leftover-gradients")
def left_over(history: History) -> Iterator[Difference]:
    """Gradients that were still in .grad at the end, and that no step had used.

    Symptom: Fewer updates than batches / N, rounded up.
    Cause: The number of micro-batches isn't a multiple of N, and nothing steps after the last of an epoch: they are
        lost, or join the next epoch's first update.
    Fix: Make an update from the short window at every epoch's end.
    Reported: timoschick/pet/issues/36, meta-pytorch/torchtune/pull/2745
    """
    for record in history.records if not history.failed else ():
        if calls := record.left_over:
            last, total = record.updates[-1:], len(history.calls_of(record))
            where = next((condition_of(update.where) for update in last), None) or calls[-1].where
            text, fix = (
                f"the gradients of the last {count_noun(len(calls), 'backward call')} of the run were never used",
                None,
            )
            if last and len(calls) > 2 * history.size(record) and len(calls) >= total / 2:  # it is no tail
                made = (
                    "is the only step"
                    if record.made == 1
                    else f"made the last of {record.made} steps long before the end"
                )
                fix = f"line {last[0].where.rpartition(':')[2]} {made}: let its condition count micro-batches; a count of "
                fix += "updates stands still as soon as no update is made"
            text = f"{text} by a step"
            yield Difference("left over", record, where, text, (), calls, fix=fix, backward_calls=len(calls))


@rule("empty-step")
def empty(history: History) -> Iterator[Difference]:
    """Steps that found no gradient.

    Symptom: Weights stand still; before the step there is no gradient.
    Cause: The step comes before the backward or after the zeroing, or a window holds no target at all; momentum and
        weight decay still act.
    Fix: Backward, step, zero, in this order.
    Reported: sacmehta/EdgeNets/issues/14, lightseekorg/TorchSpec/pull/33
    """
    for record in history.stepped:
        found = [u for u in record.updates if not (u.held or u.assigned or u.reused or u.skipped)]
        if not found or not record.trained or _harmless(history, record, found):
            continue
        masked = any(u.zeros and all(call.without_targets for call in u.zeros) for u in found)
        zeros = all(u.came_as_zeros or u.zeros for u in found)
        kind, level, fix = "empty", ERROR, _two_steps_in_a_row(record, found[0])
        steps = count_noun(record.made, "step")
        text = f"{len(found)} of {steps} found no gradient at all"
        if [update.number for update in found] == [1] and record.made > 1:
            level, text = ADVICE, f"the first of {steps} found no gradient"
        elif zeros:
            kind, text = "empty, zeros", f"{len(found)} of {steps} found no gradient other than zeros"
            text += ", as from a loss without a target" * masked
            level = ERROR if masked else UNDECIDED  # or a margin is kept
            fix = (
                "skip the step of a window that holds nothing: momentum and weight decay move the weights all the same"
            )
        numbers = {"steps": record.made, "empty": [update.number for update in found[:20]]}
        yield Difference(kind, record, found[0].where, text, found, fix=fix, level=level, **numbers)


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
