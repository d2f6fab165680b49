"""The exercise of notebook 09: one window under a GradScaler, judged on a `Tally` and then on a real model."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf, nan
from reprlib import repr

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ExponentialLR

from course_utils.models import mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, changed, close, scaler_refusals
from course_utils.practice.updates import (
    CLIP_RTOL,
    MakeOptimizer,
    adam,
    diagnose_clipping,
    judge_model,
    large_batches,
    random_batches,
    recorded_tally,
    sgd,
    squared_error,
)

DECAY = 0.7  # of the learning rate at each scheduler step

make_scheduler = partial(ExponentialLR, gamma=DECAY)

Bug = tuple[str, str]  # its name, and how it shows


@dataclass(frozen=True)
class Window:
    """The samples in each micro-batch of a window, and by what the gradient of its micro-batch `at` is multiplied."""

    sizes: tuple[int, ...] = (2, 2, 2, 2)
    factor: float = 1.0
    at: int = 0
    of_all: float = 1.0  # by what every gradient of the window is multiplied

    def gradient(self) -> Tensor:
        """What each sample contributes to the mean of the window."""
        factors = torch.full((len(self.sizes),), self.of_all, dtype=torch.float64)
        factors[self.at] *= self.factor
        return factors.repeat_interleave(torch.tensor(self.sizes)) / sum(self.sizes)


@dataclass(frozen=True)
class Case:
    windows: tuple[Window, ...]
    max_norm: float = 10.0
    skip_norm: float = inf
    growth_interval: int = 2000
    enabled: bool = True


GOOD, INF, NAN, SPIKE = Window(), Window(factor=inf, at=1), Window(factor=nan, at=3), Window(factor=64.0)
LARGE = Window(factor=16.0, at=2)  # its norm is 2.8, that of a good window 0.35
CASES = (
    Case((GOOD, GOOD, GOOD)),
    Case((Window((4,)), Window((4,)))),
    Case((Window((4, 2, 1, 3)), Window((2,)), Window((3, 1)))),
    Case((GOOD, LARGE, GOOD), max_norm=2.0),
    Case((GOOD, GOOD, GOOD, GOOD), growth_interval=1),
    Case((GOOD, INF, GOOD, GOOD)),
    Case((NAN, GOOD, INF, INF, GOOD), max_norm=1.0),
    Case((GOOD, SPIKE, LARGE, GOOD), max_norm=1.0, skip_norm=8.0),
    Case((SPIKE, INF, GOOD, NAN, SPIKE, GOOD), skip_norm=8.0, growth_interval=1),
    Case((Window((1,), factor=4.0), Window((1,))), skip_norm=4.0),  # equal is not above
    Case((GOOD, SPIKE, LARGE, GOOD), max_norm=1.0, skip_norm=8.0, enabled=False),
    Case((GOOD, NAN, LARGE, INF, GOOD), max_norm=1.0, enabled=False),  # as loops for bfloat16 have it
)


@exercise(
    "amp_window",
    hints={
        "clip-timing": "Whose norm do you limit, and when? The message gives the norm of your update: compare it with "
        "max_norm, and with the two orders of Step 4.",
        "clip-limit": "Which number limits which norm? Compare the arguments of your clip with the task.",
        "scaler-timing": "A call is missing, or one call comes twice in a window. Which calls does the loop of Step 8 "
        "make for a window that it skips?",
        "scheduler-cadence": "How does your loop learn whether the step was made? A scale may also grow. And with an "
        "infinite skip_norm, is an infinite norm above it?",
        "skip-rule": "The norm to compare with skip_norm is that of the true gradient: unscaled, and before clipping. "
        "clip_grad_norm_ returns one.",
        "unguarded-step": "Who looks for an infinity or NaN when the scaler is switched off (Step 7)? A number that "
        "you have already computed says it.",
        "stale-gradients": "Look at the window before the one that the message names. What did it leave in .grad?",
        "loss-scale": "Does the scaler divide by the number of micro-batches (Step 3)? By what does your loss do it?",
        "token-weights": "How many samples does each micro-batch hold, and by what do you weight its loss?",
        "empty-step": "A window that is left out makes no step at all. What would a step on zeros do under momentum?",
        "wrong-value": "Print what the function returns for a good window, a spike and an infinity. If the weights "
        "differ instead, clip the gradient of all parameters together.",
    },
)
def _amp_window(answer: Callable) -> str:
    for case in CASES:
        _judge_case(answer, case)
    for make_optimizer, enabled in ((sgd, True), (adam, True), (sgd, False)):
        _judge_model(answer, make_optimizer, enabled)
    return (
        "full, short and ragged windows, clipped or not, infinity, NaN and spikes, a scale that grows, a scaler that "
        "is switched off: every update is that of the large batch, and every window that has to be left out leaves "
        "nothing behind."
    )


class Run:
    """What the learner's function works with, window after window: a tally, whose `.grad` is read at each step."""

    def __init__(self, case: Case):
        self.case = case
        counts = [sum(window.sizes) for window in case.windows]
        self.samples = torch.arange(sum(counts)).split(counts)
        self.factors = torch.cat([window.gradient() * sum(window.sizes) for window in case.windows])
        self.gradients = torch.block_diag(*(window.gradient() for window in case.windows))  # of each, before clipping
        self.tally, self.optimizer, self.recorder = recorded_tally(len(self.factors), lr=1.0)
        self.scheduler = make_scheduler(self.optimizer)
        self.scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=case.growth_interval, enabled=case.enabled)
        self.scheduled: list[int] = []  # how often the scheduler had stepped, at each step of the optimizer
        self.optimizer.register_step_post_hook(lambda *_: self.scheduled.append(self.scheduler.last_epoch))

    def loss_fn(self, model: nn.Module, batch: Tensor) -> Tensor:
        values = model(batch)
        if values.requires_grad:  # the factor acts on the gradient alone: where it is infinite, the loss is finite
            values.register_hook(lambda gradient: gradient * self.factors[batch])
        return values.mean()

    def call(self, answer: Callable, k: int, said: str) -> tuple[object, list[Tensor], int]:
        """Runs window `k`: what is returned, `.grad` at each step, and how many gradients arrived."""
        given, batches = (list(self.samples[k].split(list(self.case.windows[k].sizes))) for _ in range(2))
        before = self.recorder.backwards
        self.recorder.start_epoch()
        hint = "the scaler finds no gradient to step with. Something zeroes inside the window"
        with scaler_refusals(said, ("discarded-gradients", hint, "for this optimizer")):
            got = answer(
                self.tally, batches, self.loss_fn, self.optimizer, self.scaler, self.scheduler,
                self.case.max_norm, self.case.skip_norm,
            )  # fmt: skip
        self.changed = changed(batches, given, "the window")
        rows = [torch.zeros_like(self.factors) if row is None else row for row in self.recorder.epochs[-1]]
        return got, rows, self.recorder.backwards - before

    @property
    def lr(self) -> float:
        return self.optimizer.param_groups[0]["lr"]


def _judge_case(answer: Callable, case: Case) -> None:
    run, skipped = Run(case), False
    for k in range(len(case.windows)):
        norm, after_a_skip = float(run.gradients[k].norm()), skipped
        skipped = not norm < inf or norm > case.skip_norm
        said = _describe(case, k, norm)
        scale, lr, scheduler_steps = run.scaler.get_scale(), run.lr, run.scheduler.last_epoch
        got, rows, backwards = run.call(answer, k, said)
        if skipped:
            found = _diagnose_skipped(rows, norm, case)
        else:
            stale = after_a_skip and not rows and _steps_alone(answer, case, k)
            found = _diagnose_steps(rows, backwards, norm, case, stale)
            found = found or _diagnose_update(rows[0], run.gradients[k], case.windows[k], case, scale, backwards)
            if found and found[0] in ("loss-scale", "token-weights"):
                found = _diagnose_limit(answer, case, k, rows[0]) or found
            if found and found[0] == "clip-timing" and close(rows[0], run.gradients[k], CLIP_RTOL):
                found = _diagnose_loose_limit(answer, case, k, norm) or found
        if not found and rows and run.scheduled[-1] != scheduler_steps:
            found = "scheduler-cadence", "the scheduler has stepped before the optimizer"
        found = found or _diagnose_scheduler(run, lr if skipped else lr * DECAY, skipped, scale)
        found = found or _diagnose_scale(run.scaler.get_scale(), scale, norm, bool(rows), case)
        found = found or _diagnose_returned(got, not skipped)
        if not found and run.changed:
            found = "changed-input", run.changed
        if found:
            bug, hint = found
            raise Mistake(bug, f"{said}: {hint}." if not hint.endswith("?") else f"{said}: {hint}")


def _describe(case: Case, k: int, norm: float) -> str:
    """The window, as the messages name it."""
    holds = f"norm {norm:.3g}" if norm < inf else "an infinity or NaN"
    limits = f"max_norm = {case.max_norm:g}, skip_norm = {case.skip_norm:g}"
    return (
        f"window {k + 1} of {len(case.windows)}, micro-batches of {list(case.windows[k].sizes)} samples, "
        f"its gradient has {holds}, {limits}" + ("" if case.enabled else ", a scaler that is switched off")
    )


def _diagnose_skipped(rows: list[Tensor], norm: float, case: Case) -> Bug | None:
    """The bug of a window that must make no update."""
    if not rows:
        return None
    if not any(row.any() for row in rows):
        return "empty-step", "a step has run on gradients that are zero. Momentum would move the weights"
    if norm < inf:
        return "skip-rule", "that is above skip_norm, and the step has been made all the same"
    if not case.enabled:
        return "unguarded-step", "the step has been made all the same. A scaler that is switched off leaves nothing out"
    return "scaler-timing", "the step has been made all the same. scaler.step() would have left it out"


def _diagnose_steps(rows: list[Tensor], backwards: int, norm: float, case: Case, stale: bool) -> Bug | None:
    """The bug of a window that must make one update, where it shows in whether backward and step have run."""
    if not backwards and not any(row.any() for row in rows):
        return "not-attempted", "no backward pass has run, one update is expected"
    if len(rows) > 1:
        return "irregular-window", f"{len(rows)} steps in one window"
    if stale:
        hint = "no step, because what the skipped window before it left in .grad is still there"
        return "stale-gradients", f"{hint}. Zero after a skipped window too"
    if not rows and norm > case.max_norm:
        return "skip-rule", "no step has run. A norm above max_norm is clipped; only one above skip_norm is left out"
    if not rows and case.skip_norm < inf:
        return "skip-rule", "no step has run. Is the norm that you compare the unscaled one?"
    if not rows:
        return "leftover-gradients", "no step has run, one is expected"
    if not rows[0].any():
        return "discarded-gradients", "the step found no gradient. Something zeroes before it"
    if not rows[0].isfinite().all():
        return "stale-gradients", "the step uses an infinity or NaN of an earlier window"
    return None


def _steps_alone(answer: Callable, case: Case, k: int) -> bool:
    """Whether window `k` makes an update where no other came before it."""
    _, rows, _ = Run(replace(case, windows=case.windows[k : k + 1])).call(answer, 0, "")
    return bool(rows)


def _diagnose_limit(answer: Callable, case: Case, k: int, row: Tensor) -> Bug | None:
    """The bug of an update that is limited, but by another number than `max_norm`."""
    norm = float(row.norm())
    if close(norm, case.max_norm, CLIP_RTOL):
        return "clip-limit", f"the update has norm {norm:.3g}: clipping never makes a norm larger"
    tiny = Run(replace(case, windows=(replace(case.windows[k], of_all=1e-6),)))
    _, rows, _ = tiny.call(answer, 0, "")
    if len(rows) == 1 and close(rows[0], tiny.gradients[0], CLIP_RTOL, 0.0):
        found = f"the update has norm {norm:.3g}, and the same window with a tiny gradient is not touched"
        return "clip-limit", f"{found}. Is the limit max_norm, and is it the norm of all entries together?"
    return None


def _diagnose_loose_limit(answer: Callable, case: Case, k: int, norm: float) -> Bug | None:
    """The bug of an update that should have been clipped and was not, while a larger one is."""
    large = Run(replace(case, windows=(replace(case.windows[k], of_all=1e3),), skip_norm=inf))
    _, rows, _ = large.call(answer, 0, "")
    if len(rows) == 1 and float(rows[0].norm()) < 0.9 * float(large.gradients[0].norm()):
        found = f"a gradient of norm {norm:.3g} reached the step as it was; only larger ones are limited"
        return "clip-limit", f"{found}. Is the limit max_norm?"
    return None


def _diagnose_update(
    row: Tensor, whole: Tensor, window: Window, case: Case, scale: float, backwards: int
) -> Bug | None:
    """The bug of an update that used `row`, and must use `whole`, clipped."""
    hint = diagnose_clipping(row, whole, case.max_norm)
    if not hint:
        return None
    norm, inside = float(row.norm()), whole != 0
    want = whole * min(1.0, case.max_norm / float(whole.norm()))
    if row[~inside].any():
        part = float(row[~inside].abs().max() / want.max())
        return (
            "stale-gradients",
            f"the update holds samples of earlier windows too; they count up to {part:.2g} times its own",
        )
    if scale > 1 and close(norm * scale, case.max_norm, 1e-3):
        found = f"the update has norm {norm:.3g}, that is max_norm / {scale:g}"
        return "clip-timing", f"{found}. It was clipped while it was still scaled"
    if close(row, whole, CLIP_RTOL):
        return "clip-timing", hint
    each = [float(part.mean()) for part in (row / want)[inside].split(list(window.sizes))]
    if all(abs(factor - 1) < 0.01 for factor in each):
        found = f"the update is correct to {max(abs(factor - 1) for factor in each):.1g} only"
        return "low-precision", f"{found}: something is computed in half precision, or rounded"
    if close(each, each[:1] * len(each), 1e-5):
        found = f"the update is {each[0]:.4g} times what it should be"
        if scale > 1 and close(each[0], scale, 1e-3):
            return "scaler-timing", f"{found}: that is the scale, it was never unscaled"
        if scale > 1 and each[0] < 2 / scale:
            return "scaler-timing", f"{found}: it was unscaled without having been scaled, or twice"
        return "loss-scale", f"{found}: weight each micro-batch by its share of the samples, the scaler does not divide"
    found = f"its micro-batches count {[float(f'{factor:.3g}') for factor in each]} times what they should"
    if 0.0 in each and 0 < backwards < len(window.sizes):
        return "missing-backward", f"{found}: {backwards} backward passes ran instead of {len(window.sizes)}"
    if 0.0 in each:
        return "discarded-gradients", f"{found}: something zeroes inside the window"
    if max(each) > 100 * min(each):
        return "scaler-timing", f"{found}: unscaled or rescaled inside the window"
    if len(set(window.sizes)) > 1:
        return "token-weights", f"{found}: weight each by the samples that it holds"
    return "loss-scale", f"{found}: all of them must count the same"


def _diagnose_scheduler(run: Run, lr: float, skipped: bool, scale: float) -> Bug | None:
    if close(run.lr, lr):
        return None
    what = "no update was made" if skipped else "the update was made"
    found = f"{what}, so the learning rate should be {lr:.3g} and is {run.lr:.3g}"
    if not skipped and run.scaler.get_scale() > scale:
        found += ". The scale has grown here. Only a step that the scaler leaves out makes it fall"
    return "scheduler-cadence", found


def _diagnose_scale(scale: float, before: float, norm: float, stepped: bool, case: Case) -> Bug | None:
    found = f"and is {scale:g} after {before:g}"
    if case.enabled and not norm < inf and scale >= before:
        hint = "Without it the next window overflows as well: update() belongs to every window, also to a skipped one"
        return "scaler-timing", f"the scale should fall {found}. {hint}"
    if case.enabled and case.growth_interval == 1 and stepped and scale <= before:
        hint = "update() belongs to every window, or the scale never recovers"
        return "scaler-timing", f"the scale should grow {found}: {hint}"
    return None


def _diagnose_returned(got: object, made: bool) -> Bug | None:
    with suppress(Exception):
        if got is not None and bool(got) == made:
            return None
    return "wrong-value", f"expected {made}, because {'the' if made else 'no'} update was made, got {repr(got)}"


def _judge_model(answer: Callable, make_optimizer: MakeOptimizer, enabled: bool) -> None:
    """Compares every parameter of a real model, and memory."""
    windows = [random_batches(sizes) for sizes in ((4, 4, 4, 2), (3,), (4, 1, 4), (2, 3), (4, 4, 4, 4), (1, 4))]
    windows[2][1][0, 0] = nan  # a broken sample
    windows[4][2] *= 100.0  # a spike
    max_norm, skip_norm = 0.5, 50.0

    def train(model: nn.Module, optimizer: Optimizer) -> None:
        scheduler, scaler = make_scheduler(optimizer), GradScaler("cpu", enabled=enabled)
        for window in windows:
            with scaler_refusals(case):
                answer(model, list(window), squared_error, optimizer, scaler, scheduler, max_norm, skip_norm)

    correct = large_batches(windows, max_norm, skip_norm, make_scheduler)
    case = "on a real model" + ("" if enabled else ", with a scaler that is switched off")
    one = partial(squared_error, batch=windows[0][0])
    judge_model(train, correct, mlp(3, 5, 2).double(), make_optimizer, case, one)
