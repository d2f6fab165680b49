"""What comes in which order: clipping, scaler, scheduler, ranks."""

from collections.abc import Iterator

from gradaudit.compare.rules import ADVICE, Difference, rule
from gradaudit.history import AuditedLedger, AuditedUpdate, Clip, History, count_noun

# Clipping


@rule("clip-timing")
def clipped(history: History) -> Iterator[Difference]:
    """Norms that are limited before a window's gradient is complete, or while it holds the scaler's factor.

    Symptom: N norms per update, or norms of max_norm / scale.
    Cause: A norm is limited before the window's gradient is complete, or while it holds the scaler's factor, so it
        isn't the update's norm.
    Fix: Clip once per window: last backward, unscale_(), clip, step.
    Wrong:
        for x, y in window:
            (criterion(model(x), y) / len(window)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    Correct:
        for x, y in window:
            (criterion(model(x), y) / len(window)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    Reported: huggingface/transformers/issues/986, milesial/Pytorch-UNet/pull/470
    """
    scaled = any(call.scaled != 1 for call in history.calls)
    first_of_kind: dict[str, tuple[AuditedUpdate, Clip]] = {}
    for update in history.updates:
        for clip in update.clips:
            kind = _mistimed(update, clip)
            if kind and not _meant(update, kind) and not _of_parts(update, clip):
                first_of_kind.setdefault(kind, (update, clip))
    for kind, (update, clip) in first_of_kind.items():
        n = len(update.fresh)
        when = {
            "clip late": "after the step, when they have been used",
            "clip early": "before the backward, when there is none",
            "clip scaled": f"before unscale_(), while they hold the scaler's factor of {clip.scaled:g}",
            "clip inside": f"after backward call {clip.after} of a window of {n}",
        }
        part = kind == "clip inside" and _of_another_loss(update, clip)
        fix = None if scaled else "clip once per window: after the last backward, before the step"
        text = f"gradients are clipped {when[kind]}"
        numbers = {"norm": clip.norm, "after_backward_calls": clip.after, "window": n, "scale": clip.scaled}
        yield Difference(kind, update.ledger, clip.where, text, [update], about=part, fix=fix, **numbers)


def _mistimed(update: AuditedUpdate, clip: Clip) -> str:
    """The kind of mistake; empty if it came at the right time."""
    if clip.only_measures:
        return ""
    if clip.late:
        return "clip late"
    if clip.after == 0 and not update.stale and not update.assigned:
        return "clip early"
    if clip.scaled != 1 and not clip.allows_for_the_scale:
        return "clip scaled"
    return "clip inside" if clip.after < len(update.fresh) else ""


def _meant(update: AuditedUpdate, kind: str) -> bool:
    """Is a clip that comes early or late no mistake?"""
    updates = update.ledger.updates
    if kind == "clip late":  # what its step has used is changed, and used again, as momentum that is kept in `.grad`
        return any(u.kept and u.stale for u in updates if u.number == update.number + 1)
    early = [u for u in updates if any(_mistimed(u, clip) == "clip early" for clip in u.clips)]
    # There is a gradient to clip in most updates, and none in this one, as where a batch has no loss.
    return kind == "clip early" and (2 * len(early) < len(updates) or not any(u.fresh for u in early))


def _of_parts(update: AuditedUpdate, clip: Clip) -> bool:
    """Have the calls before and after it no parameter in common, as where each agent's part is clipped by itself?"""
    reached = [call.reach.get(update.ledger) for call in update.fresh]
    clipped, rest = reached[: clip.after], reached[clip.after :]
    if None in reached or not clipped or not rest:
        return False
    return frozenset().union(*clipped).isdisjoint(frozenset().union(*rest))


def _of_another_loss(update: AuditedUpdate, clip: Clip) -> bool:
    """Did all that was clipped come from other lines than the rest, as a part that is limited by itself?

    One that is not averaged over the ranks yet is a micro-batch, and no loss of its own.
    """
    clipped, rest = update.fresh[: clip.after], update.fresh[clip.after :]
    if all(call.synced is False for call in clipped) and rest[-1].synced:
        return False
    return {call.line for call in clipped}.isdisjoint(call.line for call in rest)


# Scalers


@rule("scaler-timing")
def scaled(history: History) -> Iterator[Difference]:
    """Scales that change, or are taken out, inside a window; and scalers that are made again.

    Symptom: Micro-batches count unequally, or the scaler refuses a call.
    Cause: The scale changes, or is taken out of .grad, between the micro-batches of a window, which then add gradients
        of different scales.
    Fix: One unscale_() and update() per window, one scaler per run.
    Wrong:
        for k, (x, y) in enumerate(window):
            scaler.scale(criterion(model(x), y) / len(window)).backward()
            if k == 0:
                scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    Correct:
        for x, y in window:
            scaler.scale(criterion(model(x), y) / len(window)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    Reported: pytorch/pytorch/pull/36601, conservationtechlab/animl-py/issues/298
    """
    for ledger in history.stepped:
        for update in ledger.updates:
            early = [k for k in update.unscaled_after if any(call.scaled != 1 for call in update.fresh[k:])]
            if early:
                n, scale = len(update.fresh), update.fresh[-1].scaled
                text = f"unscale_() came after backward call {early[0]} of a window of {n}: "
                text += "what follows is scaled again"
                numbers = {"unscaled_after": early, "window": n, "scale": scale}
                yield Difference("unscaled early", ledger, update.where, text, [update], **numbers)
                break
        early = next((update for update in ledger.updates if update.updated_after), None)
        if early is not None:
            (after, where), n = early.updated_after[0], len(early.fresh)
            text = f"the scaler was updated after backward call {after} of a window of {n}, before the step"
            yield Difference("updated early", ledger, where, text, [early], updated_after=after, window=n)
        scalers = {update.scaler for update in ledger.updates if update.scaler}
        if len(scalers) > 1:
            text = f"{len(scalers)} different scalers were used, so what they learn about the scale is lost"
            where = ledger.updates[-1].where
            yield Difference("several scalers", ledger, where, text, about=scalers, scalers=len(scalers))


# Schedulers


@rule("scheduler-cadence")
def scheduled(history: History) -> Iterator[Difference]:
    """Schedules that are stepped more or less often than updates are made.

    Symptom: The warm-up ends N times too early.
    Cause: A schedule whose lengths are counted in updates is stepped in the loop over micro-batches. Or one whose
        lengths are counted in micro-batches is stepped once per update.
    Fix: Step the scheduler once per update made; count lengths in updates.
    Wrong:
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y) / n).backward()
            scheduler.step()
            if (i + 1) % n == 0:
                optimizer.step()
                optimizer.zero_grad()
    Correct:
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y) / n).backward()
            if (i + 1) % n == 0:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    Reported: Lightning-AI/pytorch-lightning/issues/1476, starVLA/starVLA/pull/210
    """
    for ledger in history.stepped:
        updates = ledger.filled
        steps = sum(len(update.scheduled) + len(update.scheduled_after) for update in updates)
        inside = [update for update in updates if not _right_before_the_step(update)]
        once_per_epoch = 2 * steps <= len(updates)  # a window may go on over the end of an epoch
        if inside and (len(inside) > 1 or len(inside[0].scheduled) > 1) and not once_per_epoch:
            where, many = inside[0].scheduled[0][1], count_noun(len(updates), "update")
            text = f"the scheduler was stepped inside windows: {count_noun(steps, 'time')} in {many}"
            numbers = {"scheduler_steps": steps, "updates": len(updates), "in_first_window": len(inside[0].scheduled)}
            yield Difference("stepped inside", ledger, where, text, inside, **numbers)
        elif ledger.schedule is not None:
            yield from _too_long(history, ledger, updates)


def _right_before_the_step(update: AuditedUpdate) -> bool:
    """Was no scheduler stepped inside it, unless once and after its last backward call?"""
    return not update.scheduled or [after for after, _ in update.scheduled] == [len(update.fresh)]


def _too_long(history: History, ledger: AuditedLedger, updates: list[AuditedUpdate]) -> Iterator[Difference]:
    """Stepped once per update, with a length that is that of the run in micro-batches: it never comes to its end."""
    schedule, n = ledger.schedule, history.size(ledger)
    steps = [[*update.scheduled_after, *(where for _, where in update.scheduled)] for update in updates]
    length = sum(update.size for update in updates) + len(ledger.left_over)
    once = all(len(each) <= 1 for each in steps) and 2 * schedule.steps > len(updates) > 1
    if n > 1 and once and schedule.steps < length in schedule.lengths:
        text = f"the scheduler is as long as the run in micro-batches, {length}, and was stepped once per update, "
        text += f"{count_noun(schedule.steps, 'time')}: it would come to its end {n} times too late"
        where, numbers = next(place for each in steps for place in each), {"length": length, "window": n}
        yield Difference("too long", ledger, where, text, updates, scheduler_steps=schedule.steps, **numbers)


# Ranks


@rule("sync-cadence")
def synced(history: History) -> Iterator[Difference]:
    """Gradients that the ranks exchange too late, or too often.

    Symptom: The ranks drift apart, or run N all-reduces per update.
    Cause: DDP averages after every backward unless it runs under no_sync(), and the last micro-batch of a window must
        not.
    Fix: Use no_sync() on all micro-batches of a window but the last.
    Wrong:
        with model.no_sync():
            for x, y in window:
                (criterion(model(x), y) / len(window)).backward()
        optimizer.step()
    Correct:
        for k, (x, y) in enumerate(window):
            last = k + 1 == len(window)
            with nullcontext() if last else model.no_sync():
                (criterion(model(x), y) / len(window)).backward()
        optimizer.step()
    Reported: karpathy/build-nanogpt/pull/30, speechbrain/speechbrain/issues/1802
    """
    for ledger in history.stepped:
        updates = [update for update in ledger.filled if all(call.synced is not None for call in update.fresh)]
        apart = [update for update in updates if not update.fresh[-1].synced]
        if apart:
            ranks = "" if apart[0].on_ranks else "on several ranks, "  # a loop is judged before it costs several GPUs
            text = f"{ranks}{len(apart)} of {count_noun(len(updates), 'update')} come before the last micro-batch is "
            text += "averaged over the ranks, which drift apart"
            numbers = {"not_averaged": len(apart), "updates": len(updates)}
            yield Difference("apart", ledger, apart[0].fresh[-1].where, text, apart, **numbers)
        # One process alone may leave out no_sync(), as some libraries do for it. With FSDP, to reduce each time is to
        # hold shards and not whole gradients.
        several = [update for update in updates if len(update.fresh) > 1 and update.on_ranks]
        often = [update for update in several if all(call.synced and not call.sharded for call in update.fresh)]
        if often:
            n = len(often[0].fresh)
            text = f"the ranks exchange gradients after each of {n} micro-batches; once per update is enough"
            numbers = {"averaged_each_time": len(often), "updates": len(updates), "window": n}
            yield Difference("often", ledger, often[0].fresh[0].where, text, often, level=ADVICE, **numbers)
