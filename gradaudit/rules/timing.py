"""What comes in which order: clipping, scaler, scheduler, ranks."""

from collections.abc import Iterator
from math import isclose

from gradaudit.history import AuditedCall, AuditedUpdate, Clip, History, count_noun
from gradaudit.rules.registry import ADVICE, ERROR, UNDECIDED, Finding, rule


@rule(
    "clip-timing",
    symptom="N norms per update, or norms of max_norm / scale.",
    fix="Clip once per window: last backward, unscale_(), clip, step.",
    cause="A norm is limited before the window's gradient is complete, or while it holds the scaler's factor, so "
    "it isn't the update's norm.",
)
def clip_timing(history: History) -> Iterator[Finding]:
    first_of_kind: dict[str, tuple[AuditedUpdate, Clip, str]] = {}
    for window in history.updates:
        for clip in window.clips:
            kind, when = _mistimed(window, clip)
            if kind and not _meant(history, window, kind) and not _of_parts(window, clip):
                first_of_kind.setdefault(kind, (window, clip, when))
    for kind, (window, clip, when) in first_of_kind.items():
        yield Finding(
            UNDECIDED if kind == "inside" and _of_another_loss(window, clip) else ERROR,
            f"gradients are clipped {when}",
            evidence={
                "update": window.number,
                "norm": clip.norm,
                "after_backward_calls": clip.after,
                "window": len(window.fresh),
                "scale": clip.scaled,
            },
            fix="clip once per window: after the last backward and unscale_(), before the step",
            where=clip.where,
            lane=window.record,
        )


def _meant(history: History, window: AuditedUpdate, kind: str) -> bool:
    """Is a clip that comes early or late no mistake?"""
    if kind == "late":
        return _goes_on(history, window)
    return kind == "early" and _mostly_later(history, window)


def _mostly_later(history: History, window: AuditedUpdate) -> bool:
    """Is there a gradient to clip in most updates, and none in this one, as where a batch has no loss?"""
    windows = window.record.updates
    early = [w for w in windows if any(_mistimed(w, clip)[0] == "early" for clip in w.clips)]
    return 2 * len(early) < len(windows) or not any(w.fresh for w in early)


def _goes_on(history: History, window: AuditedUpdate) -> bool:
    """Is what its step has used changed, and used by the next one again, as momentum that is kept in `.grad`?"""
    return any(w.kept and w.stale for w in window.record.updates if w.number == window.number + 1)


def _of_parts(window: AuditedUpdate, clip: Clip) -> bool:
    """Have the calls before and after it no parameter in common, as where each agent's part is clipped by itself?"""
    reached = [call.reach.get(window.record) for call in window.fresh]
    clipped, rest = reached[: clip.after], reached[clip.after :]
    if None in reached or not clipped or not rest:
        return False
    return frozenset().union(*clipped).isdisjoint(frozenset().union(*rest))


def _of_another_loss(window: AuditedUpdate, clip: Clip) -> bool:
    """Did all that was clipped come from other lines than the rest, as a part that is limited by itself?

    One that is not averaged over the ranks yet is a micro-batch, and no loss of its own.
    """
    clipped, rest = window.fresh[: clip.after], window.fresh[clip.after :]
    if all(call.synced is False for call in clipped) and rest[-1].synced:
        return False
    return {call.line for call in clipped}.isdisjoint(call.line for call in rest) and not _alike(window.fresh)


def _alike(calls: list[AuditedCall]) -> bool:
    """Has each a batch of its own, of one data set, and the same losses, divided by how many calls there are?"""
    terms = [term for call in calls for term in call.terms]
    drawn = {call.drawn for call in calls}
    same = len({call.kinds for call in calls}) == len(drawn) == 1 and len(max(drawn)) == 1 and len(terms) > 0
    return same and all(isclose(term.coefficient * len(calls), 1.0, rel_tol=1e-3) for term in terms)


def _mistimed(window: AuditedUpdate, clip: Clip) -> tuple[str, str]:
    """The kind of mistake, and when the clip came; both empty if it came at the right time."""
    if clip.only_measures:
        return "", ""
    if clip.late:
        return "late", "after the step, when the gradients have been used"
    if clip.after == 0 and not window.stale and not window.assigned:
        return "early", "before the backward, when there is no gradient"
    if clip.scaled != 1 and not clip.allows_for_the_scale:
        norm, factor = clip.norm, f"which includes the scaler's factor of {clip.scaled:g}"
        return "scaled", "before unscale_()" + ("" if norm is None else f": the norm was {norm:.3g}, {factor}")
    if clip.after < len(window.fresh):
        return "inside", f"after backward call {clip.after} of a window of {len(window.fresh)}"
    return "", ""


@rule(
    "scaler-timing",
    symptom="Micro-batches count unequally, or the scaler refuses a call.",
    fix="One unscale_() and update() per window, one scaler per run.",
    cause="The scale changes, or is taken out of .grad, between the micro-batches of a window, which then add "
    "gradients of different scales.",
)
def scaler_timing(history: History) -> Iterator[Finding]:
    for lane in history.stepped:
        windows = lane.updates
        yield from _unscaled_early(lane, windows)
        yield from _updated_early(lane, windows)
        yield from _momentum_unwritten(lane, windows)
        scalers = {window.scaler for window in windows if window.scaler}
        if len(scalers) > 1:
            stages = len({path for _, path in scalers}) == len(scalers)  # not in one loop
            yield Finding(
                UNDECIDED if stages else ERROR,
                f"{len(scalers)} different scalers were used, so what they learn about the scale is lost"
                + (", unless each is for a stage of the training" * stages),
                evidence={"scalers": len(scalers)},
                fix="create one GradScaler for the whole training, and save its state with the model's",
                where=windows[-1].where,
                lane=lane,
            )


def _unscaled_early(lane: str, windows: list[AuditedUpdate]) -> Iterator[Finding]:
    for window in windows:
        rest = [any(call.scaled != 1 for call in window.fresh[after:]) for after in window.unscaled_after]
        early = [after for after, scaled in zip(window.unscaled_after, rest, strict=True) if scaled]
        if early:
            yield Finding(
                ERROR,
                f"unscale_() came after backward call {early[0]} of a window of {len(window.fresh)}, so that "
                "gradients with and without the scaler's factor are added",
                evidence={
                    "update": window.number,
                    "unscaled_after": early,
                    "window": len(window.fresh),
                    "scale": window.fresh[-1].scaled,
                },
                fix="call unscale_() once per window, after its last backward",
                where=window.where,
                lane=lane,
            )
            return


def _updated_early(lane: str, windows: list[AuditedUpdate]) -> Iterator[Finding]:
    early = next((w for w in windows if w.updated_after), None)
    if early is not None:
        after, where = early.updated_after[0]
        yield Finding(
            ERROR,
            f"the scaler was updated after backward call {after} of a window of {len(early.fresh)}, before the step",
            evidence={"update": early.number, "updated_after": after, "window": len(early.fresh)},
            fix="call update() once per window, after the step of every optimizer",
            where=where,
            lane=lane,
        )


def _momentum_unwritten(lane: str, windows: list[AuditedUpdate]) -> Iterator[Finding]:
    window = next((w for w in windows if w.unwritten_momentum), None)
    if window is not None and any(w.number > window.number and not w.skipped for w in windows):
        yield Finding(
            ERROR,
            f"update {window.number} overflowed when this fused SGD had no momentum yet: PyTorch has allocated its "
            "buffer and not written to it, so that later updates add what was in that memory",
            evidence={"update": window.number},
            fix="leave out optimizer.step() where the gradient isn't finite, or pass fused=False",
            where=window.where,
            lane=lane,
        )


@rule(
    "scheduler-cadence",
    symptom="The warm-up ends N times too early.",
    fix="Step the scheduler once per update made; count lengths in updates.",
    cause="A schedule whose lengths are counted in updates is stepped in the loop over micro-batches, or for an "
    "update that the scaler skipped.",
)
def scheduler_cadence(history: History) -> Iterator[Finding]:
    for lane in history.stepped:
        windows = [w for w in lane.updates if w.fresh]
        inside = [w for w in windows if not _right_before(w)]
        if inside and (len(inside) > 1 or len(inside[0].scheduled) > 1) and not _once_per_epoch(windows):
            yield _stepped_inside(history, lane, windows, inside)
        else:
            yield from _stepped_after_a_skip(lane, windows)


def _once_per_epoch(windows: list[AuditedUpdate]) -> bool:
    """Much more seldom than updates are made: a window may go on over the end of an epoch."""
    steps = sum(len(w.scheduled) + len(w.scheduled_after) for w in windows)
    return 2 * steps <= len(windows)


def _stepped_inside(history: History, lane: str, windows: list[AuditedUpdate], inside: list[AuditedUpdate]) -> Finding:
    steps = sum(len(w.scheduled) + len(w.scheduled_after) for w in windows)
    schedule = lane.schedule
    moved, made = schedule.moved, schedule.steps
    lengths = schedule.length, schedule.own_length
    fits = next((each for each in lengths if 0.9 * each <= made <= each + 1), 0)
    divides = schedule.by_class and history.size(lane) in schedule.own_numbers
    own = schedule.by_function or divides
    ended = _ended_early(history, lane, windows)
    asked = own and not (fits or ended)
    return Finding(
        UNDECIDED if fits or asked or not moved else ERROR,
        "the scheduler was stepped inside windows: "
        f"{count_noun(steps, 'time')} in {count_noun(len(windows), 'update')}"
        + ("" if moved else "; it left the learning rate as it was")
        + (f"; its length of {fits:g} seems to be counted in the same way" if fits else "")
        + ended
        + ("; it follows a function of the script's own, which may count micro-batches" * asked),
        evidence={
            "update": inside[0].number,
            "scheduler_steps": steps,
            "updates": len(windows),
            "in_first_window": len(inside[0].scheduled),
        },
        fix="step it once after each optimizer.step(), and count its lengths in updates",
        where=inside[0].scheduled[0][1],
        lane=lane,
    )


def _ended_early(history: History, lane: str, windows: list[AuditedUpdate]) -> str:
    """What shows that its length is counted in updates, so that it came to its end long before the run did.

    Then a function of the script's own says no more than the length that it was given.
    """
    schedule, updates = lane.schedule, lane.made
    length, others, made = schedule.own_length, schedule.own_numbers, schedule.steps
    epochs = len({call.epoch for window in windows for call in window.fresh})  # each may have a window more or less
    if schedule.at_zero > max(2, made / 4):
        return f"; the learning rate has been 0 for the last {schedule.at_zero} of {made} steps"
    counts_updates = length >= 2 and abs(length - updates) <= max(1, epochs) and history.size(lane) not in others
    if counts_updates and made > 1.4 * max(length, updates):
        return f"; its length of {length:g} is that of the run in updates, and it was stepped {made} times"
    return ""


def _stepped_after_a_skip(lane: str, windows: list[AuditedUpdate]) -> Iterator[Finding]:
    skipped = [w for w in windows if w.skipped and w.scheduled_after]
    stepped = [w for w in windows if not w.skipped and w.scheduled_after]
    if skipped and len(stepped) > len(windows) / 2:
        yield Finding(
            ERROR,
            f"the scheduler was stepped after {count_noun(len(skipped), 'update')} that the scaler had skipped",
            evidence={"update": skipped[0].number, "skipped_and_stepped": len(skipped), "updates": len(windows)},
            fix="after unscale_(), step both only if the norm that clip_grad_norm_() returns is finite",
            where=skipped[0].scheduled_after[0],
            lane=lane,
        )


@rule(
    "sync-cadence",
    symptom="The ranks drift apart, or run N all-reduces per update.",
    fix="Use no_sync() on all micro-batches of a window but the last.",
    cause="DDP averages after every backward unless it runs under no_sync(), and the last micro-batch of a window "
    "must not.",
)
def sync_cadence(history: History) -> Iterator[Finding]:
    fix = (
        "exchange gradients in the last micro-batch of each window and in no other: no_sync() around forward and "
        "backward with DDP and FSDP1, set_requires_gradient_sync(False) with FSDP2"
    )
    for lane in history.stepped:
        windows = [w for w in lane.updates if w.fresh and all(call.synced is not None for call in w.fresh)]
        apart = [w for w in windows if not w.fresh[-1].synced]
        if apart:
            by_hand = any(w.rewritten for w in apart)
            yield Finding(
                UNDECIDED if by_hand else ERROR,
                ("" if apart[0].on_ranks else "on several ranks, ")  # a loop is judged before it costs several GPUs
                + f"{len(apart)} of {count_noun(len(windows), 'update')} come before the last micro-batch is averaged "
                "over the ranks, "
                + ("unless the script does that itself" if by_hand else "so that the ranks drift apart"),
                evidence={"update": apart[0].number, "updates": len(windows), "not_averaged": len(apart)},
                fix=fix,
                where=apart[0].where,
                lane=lane,
            )
        late = [(w, call) for w in windows for call in w.fresh if call.late_no_sync]
        # One process alone may leave out no_sync(), as some libraries do for it. With FSDP, to reduce each time is to
        # hold shards and not whole gradients.
        often = [
            w
            for w in windows
            if len(w.fresh) > 1 and w.on_ranks and all(call.synced and not call.sharded for call in w.fresh)
        ]
        if late:
            window, call = late[0]
            yield Finding(
                ADVICE,
                f"{count_noun(len(late), 'backward call')} ran under no_sync() without effect: DDP decides in the "
                "forward pass, which ran outside it, whether to exchange gradients",
                evidence={"update": window.number, "updates": len(windows), "averaged_under_no_sync": len(late)},
                fix="put the forward pass of each of these micro-batches inside no_sync(), too",
                where=call.where,
                lane=lane,
            )
        elif often:
            yield Finding(
                ADVICE,
                f"the ranks exchange gradients after each of {len(often[0].fresh)} micro-batches; once per update is "
                "enough",
                evidence={"update": often[0].number, "updates": len(windows), "averaged_each_time": len(often)},
                fix=fix,
                where=often[0].where,
                lane=lane,
            )


def _right_before(w):
    return not w.scheduled or [after for after, _ in w.scheduled] == [len(w.fresh)]
