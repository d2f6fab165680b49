"""The exercise of notebook 09: one window under a GradScaler."""

from math import inf, nan

from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import ExponentialLR

from course_utils.exercises.judging import compare, exercise
from course_utils.exercises.loop import SCALE, Case, Loop

FOUR, RAGGED = (2, 2, 2, 2), ((4, 4, 4, 2), (3,), (4, 1, 4), (2, 3), (4, 4, 4, 4), (1, 4))
INTERVALS = {"on": 2000, "growing": 1, "off": 2000}  # of windows, after which the scale grows


def solution(model, window, loss_fn, optimizer, scaler, scheduler, max_norm, skip_norm):
    samples = sum(len(batch) for batch in window)
    for batch in window:
        loss = loss_fn(model, batch) * (len(batch) / samples)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    made = bool(norm.isfinite() and norm <= skip_norm)
    if made:
        scaler.step(optimizer)
        scheduler.step()
    scaler.update()
    optimizer.zero_grad()
    return made


def watch(answer, case):
    """Watches each window, and after it the scale, the schedule and the returned value."""
    loop, steps, scales, made = Loop(case), [], [], []
    scaler = GradScaler("cpu", init_scale=SCALE, growth_interval=INTERVALS[case.scaler], enabled=case.scaler != "off")
    scheduler = ExponentialLR(loop.optimizer, gamma=1.0)
    loop.optimizer.register_step_post_hook(lambda *_: steps.append(scheduler.last_epoch))

    def window(batches):
        before = scaler.get_scale()
        tools = loop.optimizer, scaler, scheduler, case.max_norm, case.skip_norm
        made.append(bool(answer(loop.model, batches, loop.loss_fn, *tools)))
        steps.append(scheduler.last_epoch)
        if made[-1] or scaler.get_scale() < before:  # after a spike it may stay, or go on growing
            scales.append(f"window {loop.k + 1}: {scaler.get_scale() / before:g} times")

    return loop.run(window) | {"schedule": steps, "returned": made, "scale": scales}


def windows(*calls, max_norm=1.0, skip_norm=inf, scaler="on", **spikes):
    return Case(*calls, max_norm=max_norm, skip_norm=skip_norm, scaler=scaler, **spikes)


CASES = [
    windows(*[FOUR] * 3, max_norm=10.0),
    windows((4, 2, 1, 3), (2,), (3, 1), max_norm=10.0),
    windows(*[FOUR] * 5, spikes={4: nan, 10: inf, 14: inf}),
    windows(*[FOUR] * 4, spikes={5: 64.0, 11: 16.0}, skip_norm=8.0),
    windows(*[FOUR] * 6, spikes={1: 64.0, 6: inf, 16: nan}, max_norm=10.0, skip_norm=8.0, scaler="growing"),
    windows((1,), (1,), spikes={1: 0.0, 2: 0.0}, skip_norm=0.0),  # equal is not above
    windows(*[FOUR] * 5, spikes={8: nan, 11: 64.0, 14: inf}, skip_norm=8.0, scaler="off"),  # as for bfloat16
    windows(*RAGGED, spikes={7: nan, 13: 100.0}, max_norm=0.5, skip_norm=50.0),
]
CHANNELS = {
    "schedule": ("scheduler-cadence", "the schedule steps once after each update, and not where none was made",
                 "How does your loop learn whether the step was made? A scale may also grow."),
    "scale": ("scaler-timing", "each window needs one update(), also one that is left out",
              "Which calls does the loop of Step 8 make for a window that it skips?"),
    "returned": ("wrong-value", "the function returns whether the update was made",
                 "Print what the function returns for a good window, a spike and an infinity."),
}  # fmt: skip


@exercise
def amp_window(answer):
    compare(watch, answer, solution, CASES, **CHANNELS)
    return "windows of all sizes, clipped, skipped, with the scaler on or off: every update is that of the large batch."
