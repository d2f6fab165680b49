"""Clipping: when it comes, and what it gets."""

from collections.abc import Iterator

from gradaudit.history import AuditedUpdate, Clip, History
from gradaudit.rules.rule import ADVICE, Finding, by_framework, finding, rule


@rule("clip-timing", lambda history: any(update.clips for update in history.updates), "nothing was clipped")
def clipped(history: History) -> Iterator[Finding]:
    """Norms that are limited before a window's gradient is complete, or while it holds the scaler's factor.

    Symptom: N norms per update, or norms of max_norm / scale.
    Cause: A norm is limited before the window's gradient is complete, or while it holds the scaler's factor, so it
        isn't the update's norm.
    Fix: Clip once per window: last backward, unscale_(), clip, step.
    Known problems: Clipping by a function of the script's own isn't seen.
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
            if kind and not _without_a_loss(update, kind) and not _of_parts(update, clip):
                first_of_kind.setdefault(kind, (update, clip))
    for kind, (update, clip) in first_of_kind.items():
        n = len(update.fresh)
        when = {
            "clip late": "after the step, when they have been used",
            "clip early": "before the backward, when there is none",
            "clip scaled": f"before unscale_(), while they hold the scaler's factor of {clip.scaled:g}",
            "clip inside": f"after backward call {clip.after} of a window of {n}",
        }
        reasons = ["it may be a part that is limited by itself"] * (
            kind == "clip inside" and _of_another_loss(update, clip)
        )
        fix = None if scaled else "clip once per window: after the last backward, before the step"
        if kind == "clip inside":
            own = "clip under `if accelerator.sync_gradients:`, with accelerator.clip_grad_norm_()"
            fix = by_framework(history, update.ledger, clip.where, accelerate=own) or fix
        numbers = {"norm": clip.norm, "after_backward_calls": clip.after, "window": n, "scale": clip.scaled}
        yield finding(
            update.ledger, clip.where, f"gradients are clipped {when[kind]}", [update], reasons, fix=fix, **numbers
        )
    empty = [u.clips[0] for u in history.updates if u.clips and all(clip.got_nothing for clip in u.clips)]
    if empty:
        text = "the clip got no gradient, as from a generator of parameters that is used up"
        yield finding(None, empty[0].where, text, level=ADVICE, fix="give it a list, or model.parameters() each time")


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


def _without_a_loss(update: AuditedUpdate, kind: str) -> bool:
    """Whether most updates have a gradient to clip, and this one none, as where a batch has no loss."""
    updates = update.ledger.updates
    early = [u for u in updates if any(_mistimed(u, clip) == "clip early" for clip in u.clips)]
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
