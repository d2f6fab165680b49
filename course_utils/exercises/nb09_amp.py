"""The exercises of notebook 09: four lines that lead from 05, and the loop under a GradScaler."""

from math import inf, nan

import torch
from torch.amp import GradScaler
from torch.optim.lr_scheduler import ExponentialLR

from course_utils import my_loop
from course_utils.exercises.judging import Mistake, agree, compare, exercise
from course_utils.exercises.loop import SCALE, Case, Loop, losses_of, twice

EQUAL, RAGGED = (2,) * 6, (4, 2, 1, 3, 2, 3, 1)
PLAIN = [
    twice(EQUAL, n=2, max_norm=1e6),
    twice(RAGGED, n=4, max_norm=1e6),
    *(twice(RAGGED, n=n, max_norm=10.0) for n in (4, 1, 100)),
    twice(EQUAL, n=4, max_norm=10.0, old_gradient=True),
]
SCALED = [
    twice(EQUAL, n=4, max_norm=1e6, scaler="on"),
    *(twice(RAGGED, n=4, max_norm=max_norm, scaler="on") for max_norm in (1e6, 10.0)),
    Case((2,) * 10, n=2, max_norm=10.0, scaler="on", spikes={2: nan, 5: inf, 7: inf}),
    Case((2,) * 12, n=2, max_norm=10.0, scaler="on", spikes={1: 64.0, 4: inf, 8: nan}),
    Case((2,) * 10, n=2, max_norm=10.0, scaler="off", spikes={4: nan, 5: 64.0, 8: inf}),  # as for bfloat16
    twice(RAGGED, n=2, max_norm=10.0, scaler="on", spikes={6: inf, 13: nan}, old_gradient=True),
]
FIRST, ALL = "scheduler steps before the first update", "scheduler steps in all, one for each update"
SCHEDULE, LOGGED = "scheduler steps before each update, and before the end of each epoch", "number of losses"
SCALING, AUTOCAST = "scale in each micro-batch", "autocast"
LOGS = "", "the last micro-batch's share", "the last micro-batch's loss", "the scaled loss"
MADE = "Which line makes the update? Step the scheduler right after it, nowhere else. Does the call have its `()`?"
ORDER = "In each window: every `scale(loss)`, then `unscale_`, `step` if the norm is finite, and `update` in any case."
MISTAKES = {
    LOGGED: ("wrong-loss", "Each window has a loss, even a skipped one. Does your loop always get to its `append`?"),
    "losses": ("wrong-loss", "A window's loss is the mean over its samples, before the step. What does your log hold?"),
    **dict.fromkeys((FIRST, ALL, SCHEDULE), ("scheduler-cadence", MADE)),
    SCALING: ("scaler-timing", "How often does your loop call `update()` per window? And in one without a step?"),
    AUTOCAST: ("autocast-scope", "Where does the block under `with autocast:` begin and end?"),
}


def noted(name):
    """A method of GradScaler that says which call is missing, or where it can't come."""

    def call(scaler, *given, **more):
        calls, scaled = scaler.calls, scaler.calls.count("scale")
        used = "unscale_" in calls or "step" in calls
        why = f"`{name}` comes too early" if calls else f"`{name}` comes after `update`, or without `scale(loss)`"
        if name == "scale":
            early = f"`unscale_` comes after {scaled} of {scaler.n} micro-batches"
            why = early if scaled < scaler.n and "step" not in calls else "a window ends without `update`"
        if scaler.is_enabled() and {"scale": used, "update": not used}.get(name, not scaled):
            since = ", ".join([*calls, f"and now {name}"])
            raise Mistake("scaler-timing", f"{why}. Calls since the last `update`: {since}.", ORDER)
        scaler.calls = [] if name == "update" else [*calls, name]
        return getattr(GradScaler, name)(scaler, *given, **more)

    return call


class Scaler(GradScaler):
    scale, unscale_, step, update = map(noted, ("scale", "unscale_", "step", "update"))


class Pairs(Loop):
    """A batch is a tuple of inputs and targets: its length isn't the number of its samples."""

    def batches(self, samples):
        return [(each.clone(), each.clone()) for each in samples]

    def loss_fn(self, model, batch):
        loss = 100 * model(batch[0]).mean()  # beside such a norm the millionth that PyTorch adds is nothing
        if loss.requires_grad:  # acts on the gradient alone: where it is infinite, the loss is finite
            spike = self.case.settings.get("spikes", {}).get(int(self.owner[batch[0][0]]) + 1, 1.0)
            loss.register_hook(lambda gradient: gradient * spike)
        return loss

    def compare_update(self, step, right):
        if step and not step.row.isfinite().all():
            hint = "Is the step in an `if` on the norm that the clip returns? A scaler that is off skips nothing."
            raise Mistake("nonfinite-step", f"update {step.number} uses an infinity or a NaN.", hint)
        if step and agree(step.norm * SCALE, self.case.max_norm, 1e-3):
            said = f"update {step.number} has a norm of {step.norm:.3g}: max_norm divided by the scale, {SCALE:g}."
            raise Mistake("clip-timing", said, "Where is `unscale_`? What you clip should no longer be scaled.")
        super().compare_update(step, right)


def known(losses, means, window):
    """The losses of a log; or what its first is, if that is known to be wrong.

    Args:
        losses: One per window.
        means: The mean losses of the micro-batches.
        window: The samples of the first window's micro-batches.
    """
    shares = [mean * size / sum(window) for mean, size in zip(means or [nan], window, strict=False)]
    values = sum(shares), shares[-1], shares[-1] * sum(window) / window[-1], sum(shares) * SCALE
    return next((log or losses for log, value in zip(LOGS, values, strict=True) if agree(losses[0], value)), losses)


def watch(answer, case):
    """Watches epochs: updates, losses and schedule; with a scaler, scale and autocast, too."""
    loop, losses, steps, scales, autocast, means = Pairs(case), [], [], [], set(), []
    scheduler = ExponentialLR(loop.optimizer, gamma=1.0)
    tools, kind = [case.n, lambda batch: len(batch[0]), case.max_norm, scheduler], case.settings.get("scaler", "off")
    scaler = Scaler("cpu", init_scale=SCALE, growth_interval=1, enabled=kind == "on")
    scaler.calls, scaler.n = [], case.n
    if "scaler" in case.settings:
        tools += [torch.autocast("cpu", dtype=torch.bfloat16), scaler]

    def is_on(where):
        autocast.add(f"{'on' if torch.is_autocast_enabled('cpu') else 'off'} in {where}")

    def loss_fn(model, batch):
        is_on("loss_fn")
        scales.append(scaler.get_scale())
        means.append((loss := loop.loss_fn(model, batch)).item())
        if loss.requires_grad:
            loss.register_hook(lambda _: is_on("backward"))
        return loss

    def epoch(batches):
        with torch.autocast("cpu", enabled=False):  # which ends what an answer leaves open
            result = answer(loop.model, batches, loss_fn, loop.optimizer, *tools)
            losses.extend(losses_of(result, "a list of losses, one per window"))
        steps.append(scheduler.last_epoch)

    loop.optimizer.register_step_post_hook(lambda *_: (steps.append(scheduler.last_epoch), is_on("the step")))
    seen = loop.run(epoch) | {FIRST: steps[0], ALL: scheduler.last_epoch, SCHEDULE: steps, LOGGED: len(losses)}
    seen["losses"] = known(losses, means, case.calls[0][: case.n])
    return seen | {SCALING: scales, AUTOCAST: sorted(autocast)} if len(tools) > 4 else seen


@exercise("unequal micro-batches, short windows, clipped or not: updates, schedule and losses are the large batch's.")
def four_lines(answer):
    compare(watch, answer, my_loop.train_of(my_loop.of_the_course("08")), PLAIN, **MISTAKES)


@exercise("unequal micro-batches, clipped or not, overflow and NaN, the scaler on and off: every update is right.")
def amp_window(answer):
    compare(watch, answer, my_loop.train_of(my_loop.of_the_course("09")), SCALED, **MISTAKES)
