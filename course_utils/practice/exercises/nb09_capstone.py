"""The exercise of notebook 09: the whole loop at once."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isclose, isnan
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import ExponentialLR

from course_utils.loops import windows
from course_utils.models import mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, rounded

# First exercise: one epoch with everything that a window can need.

_LOOSE, _TIGHT = 100.0, 0.05
_SCALE = 256.0  # of the scaler at the start of an epoch; it doubles after two good steps


class _Batch(NamedTuple):
    """`rows`, of which the first `tokens` count; `factor` multiplies the loss, and its gradient."""

    rows: Tensor
    tokens: int
    factor: float = 1.0


@dataclass(frozen=True)
class _Epoch:
    tokens: tuple[int, ...]
    n: int
    max_norm: float = _LOOSE
    overflow: int = -1  # the micro-batch whose gradient is infinite
    dirty: bool = False
    scaled: bool = True

    def __str__(self) -> str:
        parts = [f"micro-batches of {', '.join(map(str, self.tokens))} tokens, N = {self.n}"]
        parts += [f"max_norm = {self.max_norm:g}"] if self.max_norm == _TIGHT else []
        parts += [f"the gradient of micro-batch {self.overflow + 1} overflows"] if self.overflow >= 0 else []
        parts += ["a gradient left by an earlier backward"] if self.dirty else []
        return ", ".join([*parts] if self.scaled else [*parts, "scaler switched off"])


_EPOCHS = (
    _Epoch((3, 3, 3, 3), 2),
    _Epoch((3, 3, 3, 3), 1),
    _Epoch((3, 1, 4, 2, 2, 4), 3),
    _Epoch((3, 1, 4, 2, 2), 2),
    _Epoch((2, 4, 1), 100),
    _Epoch((3, 1, 4, 2, 2), 2, dirty=True),
    _Epoch((3, 1, 4, 2, 2), 2, _TIGHT),
    _Epoch((3, 1, 4, 2, 2), 2, _TIGHT, scaled=False),
    _Epoch((3, 1, 4, 2, 2, 1), 2, overflow=2),
    _Epoch((3, 1, 4, 2, 2, 1), 2, _TIGHT, overflow=1),
    _Epoch((3, 0, 4, 2, 0, 1), 3),
    _Epoch((3, 1, 0, 0, 2), 2, _TIGHT),
)


class _Outcome(NamedTuple):
    weights: Tensor
    steps: int
    ticks: int
    scale: float
    losses: list[float] | None


def _same(ours: _Outcome, theirs: _Outcome) -> bool:
    return _same_weights(ours, theirs) and ours[1:4] == theirs[1:4]


def _same_weights(ours: _Outcome, theirs: _Outcome) -> bool:
    return torch.allclose(ours.weights, theirs.weights, rtol=1e-7, atol=1e-9, equal_nan=True)


def _loss(model: nn.Module, batch: _Batch) -> Tensor:
    rows = batch.rows[: batch.tokens]
    return (model(rows[:, :3]) - rows[:, 3:]).square().mean() * batch.factor


def _outcome(loop: Callable, epoch: _Epoch) -> tuple[_Outcome, int]:
    """What comes out of one epoch, and how many micro-batches went forward."""
    generator = torch.Generator().manual_seed(sum(epoch.tokens))
    model = mlp(3, 4, 2).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / 2)
            if epoch.dirty:
                p.grad = torch.ones_like(p)
    made = [
        _Batch(torch.randn(4, 5, generator=generator, dtype=torch.float64), tokens, inf if k == epoch.overflow else 1.0)
        for k, tokens in enumerate(epoch.tokens)
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    schedule = ExponentialLR(optimizer, 0.7)
    scaler = GradScaler("cpu", init_scale=_SCALE, growth_interval=2, enabled=epoch.scaled)
    steps, forwards = [], []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    model.register_forward_pre_hook(lambda *_: forwards.append(1))
    losses = loop(
        model, iter(made), _loss, optimizer, epoch.n, lambda batch: batch.tokens, scaler, epoch.max_norm, schedule
    )
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    return _Outcome(weights, len(steps), schedule.last_epoch, scaler.get_scale(), losses), len(forwards)


def _loop(fault: str = "") -> Callable:
    """The right loop, or with one fault."""

    def loop(model, batches, loss_fn, optimizer, n, weight, scaler, max_norm, schedule):
        losses = []

        def clip():
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)

        if fault not in ("dirty start", "never zeroed"):
            optimizer.zero_grad()
        for window in windows(batches, n):
            if fault == "tail dropped" and len(window) < n:
                break
            held = window if fault == "empty kept" else [batch for batch in window if weight(batch)]
            if not held and fault != "empty stepped":
                continue
            total, logged = sum(map(weight, held)) or 1, 0.0
            for batch in held:
                share = weight(batch) / total
                share = 1 / len(window) if fault == "mean of means" else share
                share = 1.0 if fault == "not divided" else share
                share = share * len(window) / n if fault == "tail by N" else share
                loss = loss_fn(model, batch) * share
                scaler.scale(loss).backward()
                logged += loss.item()
                if fault == "clipped in the window":
                    clip()
                if fault == "ticks in the window":
                    schedule.step()
                if fault == "zeroed in the window" and batch is not held[-1]:
                    optimizer.zero_grad()
            if fault == "clipped before unscale":
                clip()
            if fault != "never unscaled":
                scaler.unscale_(optimizer)
            if fault not in ("clipped in the window", "clipped before unscale", "not clipped"):
                clip()
            scaler.step(optimizer)
            before = scaler.get_scale()
            if fault != "no update of the scale":
                scaler.update()
            if fault == "ticks on a skip" or (
                scaler.get_scale() >= before and fault not in ("ticks in the window", "no tick")
            ):
                schedule.step()
            if fault != "never zeroed":
                optimizer.zero_grad()
            losses.append(logged)
        return losses

    return loop


_FAULTS = {
    "tail dropped": ("leftover-gradients", "the last, short window makes no update"),
    "not divided": ("loss-scale", "the mean losses of a window are added and not weighed"),
    "tail by N": ("loss-scale", "a short window is divided as if it were full"),
    "mean of means": ("token-weights", "micro-batches of unequal tokens count the same"),
    "dirty start": ("stale-gradients", "a gradient from before the call entered the first update"),
    "never zeroed": ("stale-gradients", "gradients of earlier windows are used again"),
    "zeroed in the window": ("discarded-gradients", "only the last micro-batch of a window is in its update"),
    "clipped before unscale": ("clip-timing", "the gradient is clipped while it still carries the scaler's factor"),
    "clipped in the window": ("clip-timing", "clipping runs after every micro-batch"),
    "not clipped": ("clip-timing", "the gradient is not clipped"),
    "never unscaled": ("clip-timing", "the gradient is clipped while it still carries the scaler's factor"),
    "ticks in the window": ("scheduler-cadence", "the schedule ticks per micro-batch"),
    "ticks on a skip": ("scheduler-cadence", "the schedule ticks where the scaler left the step out"),
    "no tick": ("scheduler-cadence", "the schedule never ticks"),
    "empty kept": ("empty-micro-batch", "a micro-batch without a token has the mean loss nan, and it was used"),
    "empty stepped": ("empty-step", "a window without a token made an update or a tick"),
}


@exercise("production")
def _production(answer: Callable) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, of a schedule that ticks before the first step
        for epoch in _EPOCHS:
            _judge_epoch(answer, epoch)
    return (
        "full and short windows, unequal tokens, a generator as loader, gradients from before, clipping that acts, an "
        "overflow, micro-batches and a window without a token: weights, ticks, scale and log are right."
    )


def _judge_epoch(answer: Callable, epoch: _Epoch) -> None:
    try:
        found, forwards = _outcome(answer, epoch)
    except TypeError as error:
        if "has no len()" in str(error):
            raise Mistake("needs-length", f"{epoch}: the loader is a generator and has no length.") from None
        raise
    except (RuntimeError, AssertionError) as error:
        if "inf checks" in str(error) and 0 in epoch.tokens:
            raise Mistake(
                "empty-step", f"{epoch}: a step for a window without a token; the scaler refuses it."
            ) from None
        if "unscale_" in str(error) or "inf checks" in str(error):
            raise Mistake("scaler-timing", f"{epoch}: the scaler refuses: {error}") from None
        raise
    if not forwards and not found.steps:
        raise Mistake("not-attempted", "no forward and no step has run yet.")
    right, _ = _outcome(_loop(), epoch)
    if not _same(found, right):
        raise _diagnosed(found, right, epoch)
    _judge_log(found.losses, right.losses, epoch)


def _diagnosed(found: _Outcome, right: _Outcome, epoch: _Epoch) -> Mistake:
    for fault, (bug, hint) in _FAULTS.items():
        wrong, _ = _outcome(_loop(fault), epoch)
        if _same(found, wrong):
            return Mistake(bug, f"{epoch}: {hint}.")
    if found.steps != right.steps:
        bug = "leftover-gradients" if found.steps < right.steps else "irregular-window"
        return Mistake(bug, f"{epoch}: {found.steps} steps in place of {right.steps}.")
    if found.ticks != right.ticks:
        ticks = f"ticks of the schedule: {found.ticks} in place of {right.ticks}"
        scale = f"; the scale went from {_SCALE:g} to {found.scale:g}" if epoch.scaled else ""
        return Mistake("scheduler-cadence", f"{epoch}: {ticks}{scale}.")
    if found.scale != right.scale:
        return Mistake(
            "scaler-timing", f"{epoch}: the scale is {found.scale:g} at the end in place of {right.scale:g}."
        )
    gap = float((found.weights - right.weights).abs().max())
    return Mistake("wrong-value", f"{epoch}: the weights end up {gap:.2g} off.")


def _judge_log(losses: object, right: list[float], epoch: _Epoch) -> None:
    try:
        logged = [float(loss) for loss in losses]
    except (TypeError, ValueError, RuntimeError):
        raise Mistake(
            "wrong-type", f"{epoch}: all weights are right; return the list of the windows' losses."
        ) from None
    if 0 in epoch.tokens and any(map(isnan, logged)):
        hint = "a micro-batch without a token has the mean loss nan: leave it out"
        raise Mistake("empty-micro-batch", f"{epoch}: the log holds nan; {hint}.")
    if epoch.overflow >= 0:  # an infinite loss, or a nan: any way to write it down will do
        return
    if len(logged) != len(right) or not all(
        isclose(ours, theirs, rel_tol=1e-6) for ours, theirs in zip(logged, right, strict=True)
    ):
        message = f"all weights are right, but the log is {rounded(logged)} in place of {rounded(right)}"
        raise Mistake("logged-loss", f"{epoch}: {message}: one mean over the window's tokens each, without the scale.")
