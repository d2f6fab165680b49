"""Clipping: when it comes, and what it gets."""

from collections.abc import Iterator
from math import inf

from gradaudit.history import AuditedLedger, AuditedUpdate, Clip, History
from gradaudit.rules.rule import ADVICE, Finding, by_framework, finding, rule


@rule("clip-timing", lambda history: any(update.clips for update in history.updates), "nothing was clipped")
def clipped(history: History) -> Iterator[Finding]:
    """Norms that are limited before a window's gradient is complete, or while it holds the scaler's factor.

    Symptom: N norms per update; or, with a GradScaler, norms thousands of times too large: its factor is in them.
    Cause: A norm is limited before the window's gradient is complete, or while it holds the scaler's factor, so it
        isn't the update's norm.
    Fix: Clip once per window: last backward, scaler.unscale_(optimizer) if there is a GradScaler, clip, step.
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
            if kind:
                first_of_kind.setdefault(kind, (update, clip))
    for kind, (update, clip) in first_of_kind.items():
        n = len(update.fresh)
        when = {
            "clip late": "after the step, when they have been used",
            "clip early": "before the backward, when there is none",
            "clip scaled": f"before unscale_(), while they hold the scaler's factor of {clip.scaled:g}",
            "clip inside": f"after backward call {clip.after} of a window of {n}",
        }
        fix = None if scaled else "clip once per window: after the last backward, before the step"
        if kind == "clip inside" and history.by_framework:
            own = "inside accelerator.accumulate(), clip under `if accelerator.sync_gradients:`, with "
            own += "accelerator.clip_grad_norm_()"
            fix = by_framework(history, update.ledger, clip.where, accelerate=own) or fix
        elif kind == "clip scaled" and clip.after == n:
            fix = "call scaler.unscale_(optimizer) before the clip"
        numbers = {"norm": clip.norm, "after_backward_calls": clip.after, "window": n, "scale": clip.scaled}
        yield finding(update.ledger, clip.where, f"gradients are clipped {when[kind]}", [update], fix=fix, **numbers)
    empty = [u.clips[0] for u in history.updates if u.clips and all(clip.got_nothing for clip in u.clips)]
    if empty:
        text = "the clip got no gradient, as from a generator of parameters that is used up"
        yield finding(None, empty[0].where, text, level=ADVICE, fix="give it a list, or model.parameters() each time")


def _mistimed(update: AuditedUpdate, clip: Clip) -> str:
    """The kind of mistake; empty if it came at the right time, or only measured."""
    if clip.limit == inf:
        return ""
    if clip.late:
        return "clip late"
    if clip.after == 0 and not update.stale and not update.assigned:
        return "clip early" if _is_early_for_most(update.ledger) else ""
    if clip.scaled != 1:
        return "clip scaled"
    return "clip inside" if clip.after < len(update.fresh) else ""


def _is_early_for_most(ledger: AuditedLedger) -> bool:
    """Whether most updates have no gradient to clip, and not only some, as where a batch has no loss."""
    return 2 * sum(any(clip.after == 0 for clip in update.clips) for update in ledger.updates) >= len(ledger.updates)
