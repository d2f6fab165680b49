"""Which gradients each step used: too many, too few, or none."""

from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import isclose

from gradaudit.history import AuditedCall, AuditedUpdate, History, Term, count_noun
from gradaudit.rules.registry import ADVICE, ERROR, UNDECIDED, Finding, rule

_LONG_RUN = 4  # windows before and after what happened once
_LABELLED = 4  # windows whose targets are looked at


@rule(
    "stale-gradients",
    symptom="Learns faster at a small learning rate, diverges at a usual one.",
    fix="Zero between each step and the next backward, also after a skipped step.",
    cause="Each backward adds to .grad, and a step leaves it as it was, so gradients that nothing clears count "
    "again in every later update.",
)
def stale_gradients(history: History) -> Iterator[Finding]:
    for lane in history.stepped:
        windows = lane.updates
        stale = [window for window in windows if window.stale]
        if reused := [window for window in windows if window.reused]:
            yield _used_again_from_elsewhere(lane, windows, reused)
        elif stale:
            yield _used_again(history, lane, windows, stale)
        elif any(window.uncleared for window in windows):
            yield _used_again_in_part(history, lane, windows)
        yield from _from_before_the_loop(history, lane)


def _used_again(history: History, lane: str, windows: list[AuditedUpdate], stale: list[AuditedUpdate]) -> Finding:
    first, given_to, own = stale[0], lane.given_to and lane.given_to.name, lane.own_step
    tried_again = all(not w.fresh for w in stale) and any(w.tried_again for w in stale)
    kept = all(w.kept for w in stale)
    put = all(w.replaced for w in stale)
    calls = [call for w in stale for call in w.fresh]
    beside = lane.by_itself and bool(calls) and all(call.users - {lane} for call in calls)
    repeated = " (no backward came between two steps)" if not first.fresh else ""
    after_skip = any(w.skipped and w.number < first.number for w in windows) and len(stale) < len(windows) / 2
    return Finding(
        UNDECIDED if tried_again or kept or put or own or beside else ERROR,
        f"update {first.number} used the gradients of {count_noun(first.stale, 'backward call')} that an earlier step "
        f"had already used{repeated}; {len(stale)} of {count_noun(len(windows), 'update')} do so"
        + ("; the weights had been put back, as in a line search" * tried_again)
        + ("; the script changes them in between, as where they are kept as momentum" * kept)
        + ("; the script puts other gradients in their place before the step" * (put and not kept))
        + ("; the optimizer's step is the script's own, and may not use them each time" * own)
        + ("; an optimizer uses the same calls, and these parameters may follow its own" * beside),
        evidence={
            "update": first.number,
            "backward_calls_held_at_each_step": [w.held for w in windows][:20],
            "updates_affected": len(stale),
        },
        fix="call zero_grad() after every step, also after one that the scaler skipped"
        if after_skip
        else f"zero the model whose gradients are given to {given_to}: zero_grad() of {given_to} clears only its own"
        if given_to
        else "call zero_grad() between each step and the next backward",
        where=first.where,
        lane=lane,
    )


def _used_again_from_elsewhere(lane: str, windows: list[AuditedUpdate], reused: list[AuditedUpdate]) -> Finding:
    return Finding(
        ERROR,
        f"update {reused[0].number} used gradients that were put into .grad before an earlier step, which had already "
        f"used them; {len(reused)} of {count_noun(len(windows), 'update')} do so",
        evidence={"update": reused[0].number, "updates_affected": len(reused)},
        fix="put new gradients into .grad before each step, and set it to None after the step",
        where=reused[0].where,
        lane=lane,
    )


def _used_again_in_part(history: History, lane: str, windows: list[AuditedUpdate]) -> Finding:
    partly = [window for window in windows if window.uncleared]
    first, (parameters, names) = partly[0], lane.uncleared
    listed = f" ({', '.join(names)}{', ...' if first.uncleared > len(names) else ''})" if names else ""
    return Finding(
        ERROR,
        f"update {first.number} also used what an earlier step had used in {first.uncleared} of its "
        f"{count_noun(parameters, 'parameter')}{listed}: only the others were zeroed; "
        f"{len(partly)} of {count_noun(len(windows), 'update')} do so",
        evidence={
            "update": first.number,
            "parameters": parameters,
            "stale_parameters": first.uncleared,
            "updates_affected": len(partly),
        },
        fix="zero all that the optimizer holds: optimizer.zero_grad()",
        where=first.where,
        lane=lane,
    )


def _from_before_the_loop(history: History, lane: str) -> Iterator[Finding]:
    """A backward before the loop, whose gradients the first window inherits: its line is never seen again."""
    windows = [w for w in lane.updates if w.fresh]
    if len(windows) <= 2 or not set.intersection(*({call.line for call in w.fresh} for w in windows)):
        return
    calls_on = Counter(call.line for call in history.calls if lane in call.records)
    first, *others = windows[0].fresh
    if calls_on[first.line] == 1 and windows[0].size > windows[1].size:  # or it is the first of the window's
        alike = any(call.kinds == first.kinds for call in others)
        yield Finding(
            ERROR if alike else UNDECIDED,
            f"update {windows[0].number} also holds the gradients of a backward call from before the loop"
            + ("" if alike else ", or of a loss that only the first update has"),
            evidence={"update": windows[0].number, "held": len(windows[0].fresh), "usual": windows[1].size},
            fix="zero once before the first window, too",
            where=first.where,
            lane=lane,
        )


@rule(
    "discarded-gradients",
    symptom="Learns slowly or not at all, and N makes no difference.",
    fix="Zero after the step, and nowhere inside a window.",
    cause="zero_grad() runs between a backward and the step that should use its gradient, as at the start of every "
    "micro-batch. Or each backward writes to the same memory, as in a CUDA graph, and .grad lies there too.",
)
def discarded_gradients(history: History) -> Iterator[Finding]:
    yield from _overwritten(history)
    for lane in history.records:
        zeroings = [z for z in lane.lost if any(not call.used for call in z.calls)]
        if zeroings and history.failed and zeroings[-1].after == lane.made:
            del zeroings[-1]  # perhaps by the script's own cleaning up
        zeroings = [z for z in zeroings if not z.were_zeros and not any(call.not_a_number for call in z.calls)]
        lost = [(z, call) for z in zeroings for call in z.calls if not call.used]
        if not lost:
            continue
        zeroing, call = lost[0]
        useful = useful_sites(history, lane)
        elsewhere = useful and not any(call.site in _used_next(history, lane, z, useful) for z, call in lost)
        elsewhere = elsewhere and not _meant_for_the_step(history, lane, lost)
        times = Counter(id(z) for z, _ in lost)
        given_up = useful and whole_windows(history, lane, [call for _, call in lost], list(times.values()))
        total = sum(lane in call.records for call in history.calls)
        zeros = all(z.came_as_zeros for z, _ in lost) and 2 * len(lost) < total  # code that clears does so each time
        put_back = any(z.put_back for z, _ in lost)
        by_itself = lane.by_itself and not lane.made
        collected = (lane.own_step or lane.collects)
        idle = not lane.made and bool(history.stepped) and not by_itself
        once = not given_up and _a_part_once(history, lane, list(times.values()), lost)
        once_more = {call.forward for call in history.calls if call.used and lane in call.users}.issuperset(call.forward for _, call in lost)
        yield Finding(
            UNDECIDED
            if elsewhere or given_up or zeros or put_back or by_itself or once_more or collected or idle or once
            else ERROR,
            f"the gradients of {len(lost)} of {count_noun(total, 'backward call')} were zeroed before "
            "any step used them"
            + ("; the next step never uses a call from there, which may be intended" if elsewhere else "")
            + ("; whole windows were dropped without a step, which may be intended" if given_up else "")
            + (
                "; they may have been zeros from the start, as from a batch whose targets are all masked"
                if zeros
                else ""
            )
            + ("; the script writes to .grad itself before the step, perhaps what it has read there" * put_back)
            + ("; the weights change all the same, though no step is ever made" * by_itself)
            + ("; another call through the same forward pass reached a step" * once_more)
            + ("; the optimizer's class is the script's own, and may have kept them" * collected)
            + ("; other optimizers made steps, and this one none, which may come later" * idle)
            + ("; this happened once, as where a loss is too large" * once),
            evidence={"backward_calls": total, "discarded": len(lost), "first": call.number, "backward": call.where},
            fix="zero after the step, or before the first backward of a window, and nowhere inside it",
            where=zeroing.where,
            lane=lane,
        )


def _meant_for_the_step(history: History, lane: str, lost: list) -> bool:
    """Were calls from elsewhere micro-batches all the same?

    So they were if only the last call before a step was averaged over the ranks, or if most windows' calls, lost and
    used ones, are divided by how many they are together.
    """
    windows = [(w, [call for z, call in lost if z.after == w.number - 1]) for w in lane.updates if w.fresh]
    windows = [(w, dropped) for w, dropped in windows if dropped]
    waited = all(call.synced is False for _, dropped in windows for call in dropped)
    if windows and waited and all(w.fresh[-1].synced for w, _ in windows):
        return True
    divided = sum(_is_divided([*dropped, *w.fresh]) for w, dropped in windows)
    return divided >= 2 and 2 * divided >= len(windows)


def _is_divided(calls: list[AuditedCall]) -> bool:
    """Are all of them divided by their number, and each of a batch of its own? Half a loss may be probed and used."""
    drawn = [bool(call.drawn) for call in calls]
    own_batches = all(drawn) or (len(calls) > 2 and not any(drawn))
    if not own_batches or len({call.kinds for call in calls}) != 1 or not calls[0].terms:
        return False
    return all(isclose(term.coefficient * len(calls), 1.0, rel_tol=1e-3) for call in calls for term in call.terms)


def _a_part_once(history: History, lane: str, times: list[int], lost: list) -> bool:
    """Was a part of a window dropped a single time in a long run, and not where the data ended?"""
    windows = [w for w in lane.updates if w.fresh]
    last = lost[-1][1]
    before = [w for w in windows if w.fresh[-1].number < last.number]
    after = [w for w in windows if w.fresh[0].number > last.number]
    if len(times) > 1 or min(len(before), len(after)) < _LONG_RUN:
        return False
    return last.epoch is None or last.epoch == after[0].fresh[0].epoch


def _used_next(history: History, lane: str, zeroing, useful: set[tuple]) -> set[tuple]:
    """From where the calls come that the next update used after a zeroing: where none, those of any update."""
    after = next((w for w in lane.updates if w.number > zeroing.after), None)
    return {call.site for call in after.fresh} if after and after.fresh else useful


def _overwritten(history: History) -> Iterator[Finding]:
    """By what made them: it has written the new ones into the memory that `.grad` had adopted."""
    for lane in history.stepped:
        call = next((call for call in history.calls if call.overwritten and lane in call.records), None)
        if call is not None:
            yield Finding(
                ERROR,
                f"backward call {call.number} brought the gradients of {count_noun(call.overwritten, 'parameter')} in "
                "the memory in which .grad lay already: it had overwritten the sum that it was then added to",
                evidence={"first": call.number, "overwritten": call.overwritten},
                fix="zero with set_to_none=False, so that .grad keeps memory of its own, and fill .grad with zeros "
                "before the first window; CUDA graphs (torch.compile's modes max-autotune and reduce-overhead, "
                "make_graphed_callables) write every gradient to the same place",
                where=call.where,
                lane=lane,
            )


def whole_windows(history: History, lane: str, lost: list[AuditedCall], times: list[int]) -> bool:
    """Did each zeroing drop as many backward calls as the windows right before and after it hold, and only sometimes?

    A zeroing in every micro-batch comes between all windows.
    """
    windows = [w for w in lane.updates if w.fresh]
    firsts = [lost[k] for k in accumulate([0, *times[:-1]])]
    numbers = sorted(call.number for call in firsts)
    undisturbed = sum(bisect(numbers, w.fresh[-1].number) == bisect(numbers, after.fresh[0].number)
                      for w, after in pairwise(windows))  # fmt: skip
    for call, dropped in zip(firsts, times, strict=True):
        nearby = [w.size for w in windows if w.fresh[-1].number < call.number][-1:]
        nearby += [w.size for w in windows if w.fresh[0].number > call.number][:1]
        if dropped != max(nearby, default=0):
            return False
    return undisturbed > len(windows) / 4


@rule(
    "empty-step",
    symptom="Weights stand still; before the step there is no gradient.",
    fix="Backward, step, zero, in this order.",
    cause="The step comes before the backward or after the zeroing, or a window holds no target at all; momentum "
    "and weight decay still act.",
)
def empty_step(history: History) -> Iterator[Finding]:
    for lane in history.stepped:
        windows = lane.updates
        empty = [w for w in windows if not (w.held or w.assigned or w.reused or w.skipped)]
        trainable = lane.trained
        if not empty or not trainable:
            continue
        only_first = [w.number for w in empty] == [1] and len(windows) > 1
        zeros = all(w.came_as_zeros or w.zeros for w in empty)
        masked = {w.number for w in windows if w.zeros and all(c.without_targets for c in w.zeros)}
        seen = zeros and any(w.number in masked for w in empty)
        missed = bool(lane.lost_calls or lane.left_over)
        nothing = all(w.no_gradients for w in empty) and not missed and not _trained_elsewhere(history, lane)
        put = not any(w.no_gradients for w in empty) and not any(lane in call.records for call in history.calls)
        yield Finding(
            ADVICE if only_first else UNDECIDED if (zeros and not seen) or nothing or put else ERROR,
            f"{len(empty)} of {count_noun(len(windows), 'step')} found no gradient"
            + (" other than zeros" if zeros else " at all")
            + (", as from a loss without a target" if seen else ", as from a margin that is kept" if zeros else "")
            + ("; none was lost, and such a step changes nothing" * nothing)
            + ("; the script puts them in itself, and these were zeros" * put),
            evidence={"update": empty[0].number, "steps": len(windows), "empty": [w.number for w in empty[:20]]},
            fix="skip the step of a window that holds nothing: momentum and weight decay move the weights all the same"
            if zeros
            else "step after backward, and zero after the step",
            where=empty[0].where,
            lane=lane,
        )


@rule(
    "foreign-gradients",
    symptom="One of two networks, as in a GAN, doesn't learn: its steps also use the other's loss.",
    fix="Zero its parameters right before its own backward, or freeze them in the other's.",
    cause="A loss reaches the parameters of another optimizer as well, and what it leaves there isn't cleared "
    "before that optimizer's own backward.",
)
def foreign_gradients(history: History) -> Iterator[Finding]:
    for lane in history.stepped:
        if any(call.records == (lane,) or call.users == {lane} for call in history.calls):  # it has its own loss
            others = [other for other in history.stepped if other != lane]
            yield from next(filter(None, (_gradients_of(history, lane, other) for other in others)), [])


def _gradients_of(history: History, lane: str, other: str) -> list[Finding]:
    """What the loss of `other` left in the windows of `lane`.

    A loss that reaches `other` only through this lane's parameters, as a generator's does through the critic, is not
    meant for them. One that comes to `other` first may be: a head's loss trains the body below it, and the body may
    have a regularizer of its own.
    """
    windows = lane.updates
    thrown = {call.number for z in other.lost for call in z.calls}
    foreign = [(w, [call for call in w.fresh if _foreign(call, w, other) or _kept_out(call, w, other, thrown)])
               for w in windows]  # fmt: skip
    mixed = [(w, calls) for w, calls in foreign if 0 < len(calls) < len(w.fresh)]
    if not mixed:
        return []
    window, calls = mixed[0]
    sites = {call.site for _, calls in mixed for call in calls}
    alone = any(w.fresh and all(c.site in sites and other in c.records for c in w.fresh) for w in windows)
    labels = all(_is_label(term) for _, calls in mixed[:_LABELLED] for call in calls for term in call.terms[:1])
    certain = not alone and any(
        _not_meant(call, w, other, labels) or (_reach_the_same(w) and _kept_out(call, w, other, thrown))
        for w, calls in mixed
        for call in calls
    )
    finding = Finding(
        ERROR if certain else UNDECIDED,
        f"update {window.number} holds {count_noun(len(calls), 'backward call')} of the loss of {other.name} in addition "
        f"to its own; {len(mixed)} of {count_noun(len(windows), 'update')} do",
        evidence={
            "update": window.number,
            "foreign": len(calls),
            "own": len(window.fresh) - len(calls),
            "updates": len(mixed),
        },
        fix=f"zero the parameters of {lane.name} before its own backward, or freeze them during that of {other.name}",
        where=calls[0].where,
        lane=lane,
    )
    return [finding]


def _foreign(call: AuditedCall, window: AuditedUpdate, other: str) -> bool:
    """Is it of the loss of `other`?

    Where the window's own losses reach the parameters of `other`, too, as a generator's loss reaches the critic, it is
    one that a step of `other` had used before this window's own call, which no other step uses. One that carries the
    gradients of other calls on, as where a loss is taken in shards, has no loss of its own.
    """
    if call.carries_on:
        return False
    if any(own.records == (window.record,) for own in window.fresh):
        return other in call.records
    return _used_before(call, window, other)


def _not_meant(call: AuditedCall, window: AuditedUpdate, other: str, labels: bool) -> bool:
    """Is it certain that the call was not made for this window?

    If all losses of the window reach `other`, or none does without being its own, the order tells. If its own ones
    don't, the call may be of another head on the same trunk, whose step comes first. And if all steps come after all
    calls, then it may be the loss of both, beside one of this window's alone, unless its targets are `labels`.
    """
    own_alone = any(own.records == (window.record,) for own in window.fresh)
    if call.nearest == window.record:
        return _used_before(call, window, other) or (labels and bool(call.terms))
    return _used_before(call, window, other) and not own_alone


def _kept_out(call: AuditedCall, window: AuditedUpdate, other: str, thrown: set[int]) -> bool:
    """Did `other` throw away what this window's own loss had left in it, right before this loss of its own?"""
    own = [each for each in window.fresh if each.users == {window.record}]
    after = own and other in call.users and own[-1].number < call.number and call.nearest not in (None, window.record)
    return bool(after) and all(other in each.records and each.number in thrown for each in own)


def _reach_the_same(window: AuditedUpdate) -> bool:
    """Then a loss that was kept out is not meant for this lane.

    One that is meant for both, as where an actor's optimizer also holds the critic's encoder, doesn't reach the rest
    of the actor.
    """
    return len({call.reach.get(window.record) for call in window.fresh}) == 1


def _is_label(term: Term) -> bool:
    return not term.name.startswith("Nll") and len(term.targets) > 1 and len(set(term.targets)) == 1


def _used_before(call: AuditedCall, window: AuditedUpdate, other: str) -> bool:
    """Had a step of `other` used it before the window's own loss was computed?"""
    own = [own.number for own in window.fresh if own.users == {window.record}]
    return other in call.users and bool(own) and call.used_at < max(own)


def _trained_elsewhere(history: History, lane: str) -> bool:
    """Do parameters of no optimizer have the shapes of those that never received a gradient here?

    Where some of this lane's did, the others are only known to have been replaced if nothing else is without one.
    """
    never, total = lane.never.total(), lane.trained
    shapes, unowned = lane.never, history.unowned_shapes
    return bool(history.unowned[0] and never) and (shapes <= unowned if never == total else shapes == unowned)


@rule(
    "orphan-parameters",
    symptom="A part never changes; its .grad stays None.",
    fix="Create the optimizer from the model after moving or wrapping it.",
    cause="The optimizer was created from other tensors than those that are trained, as before the model was "
    "moved, wrapped or given a new layer.",
)
def orphan_parameters(history: History) -> Iterator[Finding]:
    unowned, where = history.unowned
    others = f", while {count_noun(unowned, 'parameter')} that no optimizer holds did" if unowned else ""
    known = [(lane, (lane.never.total(), lane.trained)) for lane in history.records if not lane.by_itself]
    frozen_first = sorted(known, key=lambda item: item[1][1] > 0)
    for lane, (never, total) in frozen_first:
        replaced = _trained_elsewhere(history, lane)
        if never == total or replaced:  # its parameters are not, or are no longer, those of the model
            if total:
                message = f"{never} of its {count_noun(total, 'parameter')} never received a gradient"
                evidence = {"parameters": total, "without_gradient": never}
            else:
                message, evidence = "all of its parameters are frozen and none ever received a gradient", {}
            yield Finding(
                ERROR if unowned and (replaced or not total) else UNDECIDED if total else ADVICE,
                message + others,
                evidence={**evidence, "unowned_with_gradient": unowned},
                fix="create the optimizer from the parameters that are trained, after the model was moved or wrapped",
                where=where,
                lane=lane,
            )
            return
    for lane, (never, total) in known:
        if never:
            yield Finding(
                ADVICE,
                f"{never} of its {count_noun(total, 'parameter')} never received a gradient",
                evidence={"parameters": total, "without_gradient": never},
                fix="leave them out of the optimizer, or freeze them, if that is intended",
                lane=lane,
            )
    if unowned:
        yield Finding(
            ADVICE,
            f"no optimizer holds {count_noun(unowned, 'parameter')} that received gradients",
            evidence={"unowned_with_gradient": unowned},
            fix="give them to an optimizer, or freeze them with requires_grad_(False), which saves memory",
            where=where,
        )


def useful_sites(history, lane):
    """From where backward calls come that reach a step of this lane, or are used by nobody knows whom."""
    return {call.site for call in history.calls if call.used and (lane in call.users or not call.users)}
