"""What comes in which order: clipping, scaler, scheduler, ranks."""

from collections.abc import Iterator

from course_utils.audit.history import Clip, History, Window
from course_utils.audit.rules.finding import ADVICE, ERROR, Finding, count_noun


def clip_timing(history: History) -> Iterator[Finding]:
    """N norms per update, or norms of max_norm / scale.

    Mend: once per window: last backward, unscale_(), clip, step.
    """
    found: dict[str, tuple[Window, Clip, str]] = {}
    for window in history.windows:
        for clip in window.clips:
            if clip.late:
                found.setdefault("late", (window, clip, "after the step, when the gradients have been used"))
            elif clip.after == 0 and not window.stale and not window.assigned:
                found.setdefault("early", (window, clip, "before the backward, when there is no gradient"))
            elif clip.scaled != 1:
                norm = f": the norm was {clip.norm:.3g}, of which {clip.scaled:g} is the scaler's factor"
                what = f"before unscale_(){norm if clip.norm is not None else ''}"
                found.setdefault("scaled", (window, clip, what))
            elif clip.after < len(window.fresh):
                what = f"after backward call {clip.after} of a window of {len(window.fresh)}"
                found.setdefault("inside", (window, clip, what))
    for window, clip, what in found.values():
        yield Finding(
            "clip-timing",
            ERROR,
            f"gradients are clipped {what}",
            "clip once per window: after the last backward and unscale_(), before the step",
            clip.where,
            {
                "update": window.number,
                "norm": clip.norm,
                "after_backward_calls": clip.after,
                "window": len(window.fresh),
                "scale": clip.scaled,
            },
            lane=window.lane,
        )


def scaler_timing(history: History) -> Iterator[Finding]:
    """Items count unequally, or the scaler refuses a call.

    Mend: unscale_() and update() once per window, one scaler for the run.
    """
    for lane in history.lanes:
        windows = history.of(lane)
        for window in windows:
            early = [after for after in window.unscaled_after if after < len(window.fresh)]
            if early:
                yield Finding(
                    "scaler-timing",
                    ERROR,
                    f"unscale_() came after backward call {early[0]} of a window of {len(window.fresh)}, so that "
                    "gradients with and without the scaler's factor are added",
                    "call unscale_() once per window, after its last backward",
                    window.where,
                    {
                        "update": window.number,
                        "unscaled_after": early,
                        "window": len(window.fresh),
                        "scale": window.fresh[-1].scaled,
                    },
                    lane=lane,
                )
                break
        for window in windows:
            if window.updated_after:
                after, where = window.updated_after[0]
                yield Finding(
                    "scaler-timing",
                    ERROR,
                    f"the scaler was updated after backward call {after} of a window of {len(window.fresh)}, before "
                    "the step",
                    "call update() once per window, after the step of every optimizer",
                    where,
                    {"update": window.number, "updated_after": after, "window": len(window.fresh)},
                    lane=lane,
                )
                break
        scalers = {window.scaler for window in windows if window.scaler}
        if len(scalers) > 1:
            yield Finding(
                "scaler-timing",
                ERROR,
                f"{len(scalers)} different scalers were used, so what they learn about the scale is lost",
                "make one GradScaler for the whole training, and save its state with the model's",
                windows[-1].where,
                {"scalers": len(scalers)},
                lane=lane,
            )


def scheduler_cadence(history: History) -> Iterator[Finding]:
    """The warm-up is over N times too early.

    Mend: tick once per update that was made; count lengths in updates.
    """
    for lane in history.lanes:
        windows = [w for w in history.of(lane) if w.fresh]
        inside = [w for w in windows if w.scheduler_steps]
        scheduler_steps = sum(len(w.scheduler_steps) + len(w.scheduler_steps_after) for w in windows)
        if inside and (len(inside) > 1 or len(inside[0].scheduler_steps) > 1):
            yield Finding(
                "scheduler-cadence",
                ERROR,
                f"the schedule was stepped inside windows: {count_noun(scheduler_steps, 'time')} in {count_noun(len(windows), 'update')}",
                "step it once after each optimizer.step(), and count its lengths in updates",
                inside[0].scheduler_steps[0][1],
                {
                    "update": inside[0].number,
                    "scheduler_steps": scheduler_steps,
                    "updates": len(windows),
                    "in_first_window": len(inside[0].scheduler_steps),
                },
                lane=lane,
            )
            continue
        skipped = [w for w in windows if w.skipped and w.scheduler_steps_after]
        stepped = [w for w in windows if not w.skipped and w.scheduler_steps_after]
        if skipped and len(stepped) > len(windows) / 2:
            yield Finding(
                "scheduler-cadence",
                ERROR,
                f"the schedule was stepped after {count_noun(len(skipped), 'update')} that the scaler had skipped",
                "step it only if the scale has not fallen: scale <= scaler.get_scale() after update()",
                skipped[0].scheduler_steps_after[0],
                {"update": skipped[0].number, "skipped_and_stepped": len(skipped), "updates": len(windows)},
                lane=lane,
            )


def sync_cadence(history: History) -> Iterator[Finding]:
    """Ranks drift apart, or average N times per update.

    Mend: no_sync() around forward and backward of all micro-batches but the last.
    """
    for lane in history.lanes:
        windows = [w for w in history.of(lane) if w.fresh and all(call.synced is not None for call in w.fresh)]
        apart = [w for w in windows if not w.fresh[-1].synced]
        if apart:
            yield Finding(
                "sync-cadence",
                ERROR,
                f"{len(apart)} of {count_noun(len(windows), 'update')} used gradients whose last micro-batch was not "
                "averaged over the ranks, so that the ranks drift apart",
                "use no_sync() around the forward and backward of all micro-batches of a window but the last",
                apart[0].where,
                {"update": apart[0].number, "updates": len(windows), "not_averaged": len(apart)},
                lane=lane,
            )
        often = [w for w in windows if len(w.fresh) > 1 and all(call.synced for call in w.fresh)]
        if often:
            yield Finding(
                "sync-cadence",
                ADVICE,
                f"the ranks average after each of {len(often[0].fresh)} micro-batches, where once per update is enough",
                "use no_sync() around the forward and backward of all micro-batches of a window but the last",
                often[0].where,
                {"update": often[0].number, "updates": len(windows), "averaged_each_time": len(often)},
                lane=lane,
            )
