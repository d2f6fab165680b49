"""The exercises of notebook 09: one window under a GradScaler, and the calls of such a window put in order."""

from collections.abc import Callable
from math import inf, nan

from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import ExponentialLR

from course_utils.practice.bench import Exercise, Seen, edits
from course_utils.practice.loop import Case, Loop

FOUR = (2, 2, 2, 2)
SPIKE, LARGE = 64.0, 16.0  # the norm of a window with one is 11 or 2.8, that of others 0.35


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


def scaler_for(case: Case) -> GradScaler:
    return GradScaler("cpu", init_scale=1024.0, growth_interval=case.scaler or 2000, enabled=case.scaler > 0)


def watch(answer: Callable, case: Case) -> Seen:
    """Watches window after window, and after each one the scale, the schedule, and what was returned."""
    loop, scaler = Loop(case), scaler_for(case)
    scheduler = ExponentialLR(loop.optimizer, gamma=0.7)
    steps, scales, made = [], [], []
    loop.optimizer.register_step_post_hook(lambda *_: steps.append(scheduler.last_epoch))

    def window(batches: list) -> None:
        tools = loop.optimizer, scaler, scheduler, case.max_norm, case.skip_norm
        before = scaler.get_scale()
        made.append(bool(answer(loop.model, batches, loop.loss_fn, *tools)))
        steps.append(scheduler.last_epoch)
        if loop.k in loop.updates.call or scaler.get_scale() < before:  # after a spike it may stay, or go on growing
            scales.append(f"window {loop.k + 1}: {scaler.get_scale() / before:g} times")

    seen = loop.run(window)
    return seen | {"schedule": steps, "scale": scales, "returned": made}


BATCH, UNSCALE = "scaler.scale(loss).backward()", "scaler.unscale_(optimizer)"
CLIP = "norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)"
NORM = "norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])"
STEP, UPDATE = "if made:\n    scaler.step(optimizer)", "scaler.update()"
RAGGED = ((4, 4, 4, 2), (3,), (4, 1, 4), (2, 3), (4, 4, 4, 4), (1, 4))
REAL = {"factors": [(6, nan), (12, 100.0)], "max_norm": 0.5, "skip_norm": 50.0, "real": True}
AMP_WINDOW = Exercise(
    "amp_window",
    "09_amp",
    watch,
    solution,
    cases=[
        Case((FOUR,) * 3, max_norm=10.0),
        Case(((4, 2, 1, 3), (2,), (3, 1)), max_norm=10.0),
        Case((FOUR,) * 3, factors=[(6, LARGE)], max_norm=2.0),
        Case((FOUR,) * 5, factors=[(3, nan), (9, inf), (13, inf)], max_norm=1.0),
        Case((FOUR,) * 4, factors=[(4, SPIKE), (10, LARGE)], max_norm=1.0, skip_norm=8.0),
        Case((FOUR,) * 6, factors=[(0, SPIKE), (5, inf), (15, nan)], max_norm=10.0, skip_norm=8.0, scaler=1),
        Case(((1,), (1,)), factors=[(0, 4.0)], max_norm=10.0, skip_norm=4.0),  # equal is not above
        Case((FOUR,) * 4, factors=[(4, SPIKE), (10, LARGE)], max_norm=1.0, skip_norm=8.0, scaler=0),
        Case((FOUR,) * 5, factors=[(7, nan), (10, LARGE), (13, inf)], max_norm=1.0, scaler=0),  # as for bfloat16
        *(Case(RAGGED, **REAL, **more) for more in ({}, {"adam": True}, {"scaler": 0})),
    ],
    edits=[
        *edits("skip-rule", "norm <= skip_norm", "min(norm, max_norm) <= skip_norm"),
        *edits("clip-timing", f"{UNSCALE}\n{CLIP}", f"{CLIP}\n{UNSCALE}"),
        *edits("clip-timing/never", CLIP, NORM),
        *edits("scaler-timing/update", UPDATE, "", f"if made:\n    {UPDATE}"),
        *edits("scheduler-cadence", "scheduler.step()", "", "scheduler.step(); scheduler.step()"),
        *edits("scheduler-cadence", f"{STEP}\n    scheduler.step()", f"{STEP}\nscheduler.step()"),
    ],
)
