"""The exercise of notebook 05: one window under a GradScaler, judged on a `Tally` and then on a real model."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isclose, nan
from pathlib import Path
from reprlib import repr

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import ExponentialLR

from course_utils.memory import saved_bytes
from course_utils.models import Tally, mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, compare_memory, compare_weights, rounded

DECAY = 0.7  # of the learning rate at each tick; like no 1/N and no power of 2, so that an early tick shows as itself


@dataclass(frozen=True)
class _Window:
    """The items of each micro-batch of a window, and by what the gradient of its micro-batch `at` is multiplied."""

    sizes: tuple[int, ...] = (2, 2, 2, 2)
    factor: float = 1.0
    at: int = 0

    def factors(self) -> Tensor:
        """The factor of each item."""
        each = [self.factor if place == self.at else 1.0 for place in range(len(self.sizes))]
        return torch.repeat_interleave(torch.tensor(each, dtype=torch.float64), torch.tensor(self.sizes))


@dataclass(frozen=True)
class _Case:
    windows: tuple[_Window, ...]
    max_norm: float = 10.0
    skip_norm: float = inf
    growth_interval: int = 2000
    enabled: bool = True


_GOOD, _INF, _NAN, _SPIKE = _Window(), _Window(factor=inf, at=1), _Window(factor=nan, at=3), _Window(factor=64.0)
_LARGE = _Window(factor=16.0, at=2)  # its norm is 2.8, that of a good window 0.35
_CASES = (
    _Case((_GOOD, _GOOD, _GOOD)),
    _Case((_Window((4,)), _Window((4,)))),
    _Case((_Window((4, 2, 1, 3)), _Window((2,)), _Window((3, 1)))),
    _Case((_GOOD, _LARGE, _GOOD), max_norm=1.0),
    _Case((_GOOD, _GOOD, _GOOD, _GOOD), growth_interval=1),
    _Case((_GOOD, _INF, _GOOD, _GOOD)),
    _Case((_NAN, _GOOD, _INF, _INF, _GOOD), max_norm=1.0),
    _Case((_GOOD, _SPIKE, _LARGE, _GOOD), max_norm=1.0, skip_norm=8.0),
    _Case((_SPIKE, _INF, _GOOD, _NAN, _SPIKE, _GOOD), skip_norm=8.0, growth_interval=1),
    _Case((_Window((1,), factor=4.0), _Window((1,))), skip_norm=4.0),  # equal is not above
    _Case((_GOOD, _SPIKE, _LARGE, _GOOD), max_norm=1.0, skip_norm=8.0, enabled=False),
)


@exercise("amp_window")
def _amp_window(answer: Callable) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a schedule that ticks before any step is named below
        for case in _CASES:
            _judge_case(answer, case)
        for make in (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.01)):
            _judge_model(answer, make)
    return (
        "full, short and ragged windows, clipped or not, inf, nan, spikes, a scale that grows, a scaler switched off: "
        "every update is that of the large batch, and every window that has to be left out leaves nothing behind."
    )


# On a tally: the update itself says how much each item counted.


class _Run:
    """What the learner's function works with, and what it did in the window that runs."""

    def __init__(self, case: _Case):
        self.tally = Tally(sum(sum(window.sizes) for window in case.windows)).double()
        self.optimizer = torch.optim.SGD(self.tally.parameters(), lr=1.0)
        self.scheduler = ExponentialLR(self.optimizer, DECAY)
        self.scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=case.growth_interval, enabled=case.enabled)
        self.factors = torch.cat([window.factors() for window in case.windows])
        self.steps = self.backwards = 0
        self.optimizer.register_step_pre_hook(self._count_step)
        self.tally.weight.register_post_accumulate_grad_hook(self._count_backward)

    def _count_step(self, *_) -> None:
        self.steps += 1

    def _count_backward(self, _) -> None:
        self.backwards += 1

    def loss_fn(self, model: nn.Module, batch: Tensor) -> Tensor:
        values = model(batch)
        if values.requires_grad:  # the factor acts on the gradient alone: where it is inf, the loss is finite
            values.register_hook(lambda gradient: gradient * self.factors[batch])
        return values.mean()

    @property
    def lr(self) -> float:
        return self.optimizer.param_groups[0]["lr"]


def _judge_case(answer: Callable, case: _Case) -> None:
    run, start = _Run(case), 0
    for k, window in enumerate(case.windows):
        stop = start + sum(window.sizes)
        gradient = torch.zeros(len(run.factors), dtype=torch.float64)
        gradient[start:stop] = run.factors[start:stop] / (stop - start)
        norm = float(gradient.norm())
        made = norm <= case.skip_norm and norm < inf
        batches = list(torch.arange(start, stop).split(list(window.sizes)))
        said = _describe(case, k, norm)

        before, lr, scale = run.tally.weight.detach().clone(), run.lr, run.scaler.get_scale()
        run.steps = run.backwards = 0
        got = _call(
            answer, said, run.tally, batches, run.loss_fn, run.optimizer, run.scaler, run.scheduler, case.max_norm,
            case.skip_norm,
        )  # fmt: skip
        moved = (before - run.tally.weight.detach()) / lr
        if made:
            want = gradient * min(1.0, case.max_norm / norm)
            if run.steps != 1 or not torch.allclose(moved, want, rtol=1e-5, atol=1e-12):
                raise Mistake(*_diagnose(run, case, k, moved, want, gradient, scale, said))
        elif run.steps or moved.any():
            raise Mistake(*_should_have_skipped(run, moved, norm, said))
        _judge_schedule(run, lr, scale, made, said)
        _judge_scale(run, case, scale, norm, said)
        _judge_returned(got, made, said)
        start = stop


def _describe(case: _Case, k: int, norm: float) -> str:
    """The window, as the messages name it."""
    holds = "an inf or nan" if not norm < inf else f"norm {norm:.3g}"
    limits = f"max_norm = {case.max_norm:g}, skip_norm = {case.skip_norm:g}"
    scaler = "" if case.enabled else ", a scaler that is switched off"
    return (
        f"window {k + 1} of {len(case.windows)}, micro-batches of {list(case.windows[k].sizes)} items, "
        f"its gradient has {holds}, {limits}{scaler}"
    )


def _call(answer: Callable, said: str, *arguments) -> object:
    try:
        return answer(*arguments)
    except (RuntimeError, AssertionError, ValueError) as error:
        last = error.__traceback__
        while last.tb_next:
            last = last.tb_next
        if Path(last.tb_frame.f_code.co_filename).name == "grad_scaler.py":
            if all(p.grad is None for p in arguments[0].parameters()) and "for this optimizer" in str(error):
                hint = "the scaler finds no gradient to step with. Something zeroes inside the window"
                raise Mistake("discarded-gradients", f"{said}: {hint}.") from error
            raise Mistake("scaler-timing", f"{said}: the scaler refuses, {type(error).__name__}: {error}") from error
        raise


def _should_have_skipped(run: _Run, moved: Tensor, norm: float, said: str) -> tuple[str, str]:
    if not moved.any():
        return "empty-step", f"{said}: a step has run on gradients that are zero. Momentum would move the weights"
    if norm < inf:
        return "skip-rule", f"{said}: that is above skip_norm, and the step has been made all the same"
    return "scaler-timing", f"{said}: the step has been made all the same. scaler.step() would have left it out"


def _diagnose(
    run: _Run, case: _Case, k: int, moved: Tensor, want: Tensor, gradient: Tensor, scale: float, said: str
) -> tuple[str, str]:
    """The bug that a window shows which should have made one update `want` and made `moved`."""
    sizes, after_skip = case.windows[k].sizes, k > 0 and not _is_made(case, k - 1)
    if not run.backwards:
        return "not-attempted", f"{said}: no backward has run, one update is expected"
    if run.steps > 1:
        return "irregular-window", f"{said}: {run.steps} steps in one window"
    if not moved.isfinite().all():
        return "stale-gradients", f"{said}: the weights are no longer finite, from an infinity of an earlier window"
    if not run.steps:
        if after_skip:
            return "stale-gradients", (
                f"{said}: no step, for what the skipped window before it left in .grad is still there. Zero after a "
                "skipped window too"
            )
        if case.skip_norm < inf:
            return "skip-rule", f"{said}: no step has run. Is the norm that you compare the unscaled one?"
        return "leftover-gradients", f"{said}: no step has run, one is expected"
    if not moved.any():
        return "discarded-gradients", f"{said}: the step found no gradient. Something zeroes before it"

    inside = gradient != 0
    if moved[~inside].any():
        part = float(moved[~inside].abs().max() / want.max())
        return "stale-gradients", f"{said}: items of earlier windows are in its update, up to {part:.2g} of its own"
    if scale > 1 and isclose(float(moved.norm()) * scale, case.max_norm, rel_tol=1e-3):
        return "clip-timing", (
            f"{said}: the update has norm {float(moved.norm()):.3g}, that is max_norm / {scale:g}. It was clipped "
            "while it was still scaled"
        )
    factors = (moved / want)[inside]
    each = [float(part.mean()) for part in factors.split(list(sizes))]
    first = each[0]
    if all(isclose(one, first, rel_tol=1e-5) for one in each):
        found = f"{said}: the update is {first:.4g} times what it should be"
        if any(isclose(first, DECAY**ticks, rel_tol=1e-5) for ticks in range(1, len(sizes) + 1)):
            return "scheduler-cadence", f"{found}: the schedule has ticked before the step"
        if scale > 1 and isclose(first, scale, rel_tol=1e-3):
            return "scaler-timing", f"{found}: that is the scale, it was never unscaled"
        if scale > 1 and first < 2 / scale:
            return "scaler-timing", f"{found}: it was unscaled without having been scaled, or twice"
        if torch.allclose(moved, gradient, rtol=1e-5):
            return "clip-timing", f"{found}: it has not been clipped to max_norm"
        return "loss-scale", f"{found}: weigh each micro-batch by its share of the items, the scaler does not divide"
    found = f"{said}: its micro-batches count {[float(f'{one:.3g}') for one in each]} times what they should"
    if 0.0 in each:
        return "discarded-gradients", f"{found}: something zeroes inside the window"
    if max(each) > 100 * min(each):
        return "scaler-timing", f"{found}: unscaled or rescaled inside the window"
    if len(set(sizes)) > 1:
        return "token-weights", f"{said}: its micro-batches count {rounded(each)} times what they should"
    return "wrong-value", found


def _is_made(case: _Case, k: int) -> bool:
    window = case.windows[k]
    norm = float((window.factors() / sum(window.sizes)).norm())
    return norm <= case.skip_norm and norm < inf


def _judge_schedule(run: _Run, lr: float, scale: float, made: bool, said: str) -> None:
    expected = lr * DECAY if made else lr
    if isclose(run.lr, expected, rel_tol=1e-9):
        return
    what = "the update was made" if made else "no update was made"
    found = f"{said}: {what}, so the learning rate should be {expected:.3g} and is {run.lr:.3g}"
    if made and run.scaler.get_scale() > scale:
        found += ". The scale has grown here; it falls, and only then, where the scaler leaves a step out"
    raise Mistake("scheduler-cadence", f"{found}.")


def _judge_scale(run: _Run, case: _Case, scale: float, norm: float, said: str) -> None:
    now = run.scaler.get_scale()
    if case.enabled and not norm < inf and now >= scale:
        raise Mistake(
            "scaler-timing",
            f"{said}: the scale should fall and is {now:g} after {scale:g}. Without it the next window overflows as "
            "well: update() belongs to every window, also to one that is left out.",
        )
    if case.enabled and case.growth_interval == 1 and run.steps and now <= scale:
        hint = "update() belongs to every window, or the scale never recovers"
        raise Mistake("scaler-timing", f"{said}: the scale should grow and is {now:g} after {scale:g}: {hint}.")


def _judge_returned(got: object, made: bool, said: str) -> None:
    try:
        right = got is not None and bool(got) == made
    except Exception:
        right = False
    if not right:
        raise Mistake(
            "wrong-value", f"{said}: expected {made}, for that is whether the update was made, got {repr(got)}."
        )


# On a real model: every parameter, under optimizers with a memory.


def _judge_model(answer: Callable, make: Callable) -> None:
    windows = [
        [torch.randn(size, 3 + 2, dtype=torch.float64) for size in sizes]
        for sizes in ((4, 4, 4, 2), (3,), (4, 1, 4), (2, 3), (4, 4, 4, 4), (1, 4))
    ]
    windows[2][1][0, 0] = nan  # a broken sample
    windows[4][2] *= 100.0  # a spike
    ours = mlp(3, 5, 2).double()
    theirs = copy.deepcopy(ours)
    max_norm, skip_norm = 0.5, 50.0
    optimizer = make(ours.parameters())
    scheduler = ExponentialLR(optimizer, DECAY)
    for window in windows:
        optimizer.zero_grad()
        _mse(ours, torch.cat(window)).backward()
        norm = float(torch.cat([p.grad.flatten() for p in ours.parameters()]).norm())
        if norm <= skip_norm:
            for p in ours.parameters():
                p.grad *= min(1.0, max_norm / norm)
            optimizer.step()
            scheduler.step()

    optimizer = make(theirs.parameters())
    scheduler, scaler = ExponentialLR(optimizer, DECAY), GradScaler("cpu")
    said = f"on a real model, {type(optimizer).__name__}"
    with saved_bytes(theirs) as one:
        _mse(theirs, windows[0][0])
    with saved_bytes(theirs) as saved:
        for window in windows:
            _call(answer, said, theirs, list(window), _mse, optimizer, scaler, scheduler, max_norm, skip_norm)
    compare_weights(ours, theirs, said, rtol=1e-4, atol=1e-5)
    compare_memory(saved, one, said)


def _mse(model: nn.Module, batch: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(batch[:, :3]), batch[:, 3:])
