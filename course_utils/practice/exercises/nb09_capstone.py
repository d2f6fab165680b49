"""The exercise of notebook 09: one epoch with everything that a window can need."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import compress
from math import inf, isnan
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler

from course_utils.loops import windows
from course_utils.models import mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, close, rounded, scaler_refusals
from course_utils.practice.updates import (
    OLD,
    Expected,
    judge_model,
    large_batches,
    random_batches,
    recorded_tally,
    sgd,
    squared_error,
)

LOOSE, TIGHT = 1e6, 0.05  # a max_norm that no gradient reaches, even multiplied by the scale, and one that each exceeds
make_scheduler = partial(ExponentialLR, gamma=0.7)
INITIAL_SCALE = 256.0  # at the start of an epoch; it doubles after two updates in a row


class Batch(NamedTuple):
    """`rows`, of which the first `tokens` count; `factor` multiplies the loss, and its gradient."""

    rows: Tensor
    tokens: int
    factor: float


@dataclass(frozen=True)
class Epoch:
    """What one call gets; `overflow` is the place of the micro-batch whose gradient is infinite."""

    tokens: tuple[int, ...]
    n: int
    max_norm: float = LOOSE
    overflow: int = -1
    dirty: bool = False
    scaled: bool = True

    def __str__(self) -> str:
        parts = [f"micro-batches of {', '.join(map(str, self.tokens))} tokens, N = {self.n}"]
        parts += [f"max_norm = {self.max_norm:g}"] if self.max_norm == TIGHT else []
        parts += [f"the gradient of micro-batch {self.overflow + 1} overflows"] if self.overflow >= 0 else []
        parts += ["a gradient left by an earlier backward pass"] if self.dirty else []
        return ", ".join(parts if self.scaled else [*parts, "scaler switched off"])

    def batches(self, rows: list[Tensor]) -> list[Batch]:
        factors = [inf if place == self.overflow else 1.0 for place in range(len(rows))]
        return [Batch(*each) for each in zip(rows, self.tokens, factors, strict=True)]


EPOCHS = (
    Epoch((3, 3, 3, 3), 2),
    Epoch((3, 3, 3, 3), 1),
    Epoch((3, 1, 4, 2, 2, 4), 3),
    Epoch((3, 1, 4, 2, 2), 2),
    Epoch((2, 4, 1), 100),
    Epoch((3, 1, 4, 2, 2), 2, dirty=True),
    Epoch((3, 1, 4, 2, 2), 2, TIGHT),
    Epoch((3, 1, 4, 2, 2), 2, TIGHT, scaled=False),
    Epoch((3, 1, 4, 2, 2, 1), 2, overflow=2),
    Epoch((3, 1, 4, 2, 2, 1), 2, TIGHT, overflow=1),
    Epoch((3, 0, 4, 2, 0, 1), 3),
    Epoch((3, 1, 0, 0, 2), 2, TIGHT),
)
ON_A_MODEL = (Epoch((3, 1, 4, 2, 2, 1), 2, TIGHT), Epoch((3, 0, 4, 2, 0, 0, 1), 2, TIGHT, overflow=2, dirty=True))


@exercise(
    "production",
    hints={
        "loss-scale": "What is the weight of a micro-batch in its window? Before the first backward pass, add the "
        "weights of all micro-batches that you use.",
        "token-weights": "What is the weight of a micro-batch in its window? Before the first backward pass, add the "
        "weights of all micro-batches that you use.",
        "clip-timing": "Clip once per window, between `unscale_` and `step`.",
        "scheduler-cadence": "Step the scheduler once per window, after the optimizer's step. And if that was left "
        "out? Compare the scale before and after `update()`.",
        "empty-step": "If no token is left in a window, go on to the next one: a scaler that has seen no gradient "
        "refuses its step.",
        "empty-micro-batch": "Leave out micro-batches of weight 0 before anything else.",
        "leftover-gradients": "Every micro-batch belongs to exactly one update. Where do you step?",
        "discarded-gradients": "Every micro-batch belongs to exactly one update. Where do you zero?",
        "scaler-timing": "Each window has one `unscale_`, one `step` and one `update`.",
        "needs-length": "The loader may be a generator, which has no `len()`. Does `windows` need one?",
        "stale-gradients": "When do you zero for the first time?",
        "logged-loss": "The weights are right. Log the sum of the window's weighted losses, without the scaler's "
        "factor.",
    },
)
def _production(answer: Callable) -> str:
    for epoch in EPOCHS:
        _judge_epoch(answer, epoch)
    for epoch in ON_A_MODEL:
        _judge_model(answer, epoch)
    return (
        "full and short windows, unequal tokens, a generator as loader, gradients from before, clipping that acts, an "
        "overflow, micro-batches and a window without a token: weights, scheduler steps, scale and log are correct."
    )


def _judge_epoch(answer: Callable, epoch: Epoch) -> None:
    """Judges one epoch on a tally, whose loss for each token is another number."""
    tally, optimizer, recorder = recorded_tally(sum(epoch.tokens), 0.2, epoch.dirty)
    values = torch.arange(1.0, sum(epoch.tokens) + 1, dtype=torch.float64).sqrt()
    scheduler = make_scheduler(optimizer)
    scaler = GradScaler("cpu", init_scale=INITIAL_SCALE, growth_interval=2, enabled=epoch.scaled)
    before: list[int] = []
    recorder.start_epoch()
    optimizer.register_step_post_hook(lambda *_: before.append(scheduler.last_epoch))

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.rows) + values[batch.rows]).mean() * batch.factor

    batches = epoch.batches(list(torch.arange(sum(epoch.tokens)).split(list(epoch.tokens))))
    losses = _call(answer, epoch, tally, batches, loss_fn, optimizer, scaler, scheduler)

    expected, observed = Expected(epoch.tokens, epoch.n, epochs=1, unit="tokens"), recorder.observed()
    log = [float(row @ values) for row in expected.rows]
    made = [epoch.overflow not in window for window in expected.windows]
    expected.rows = list(compress(expected.rows, made))
    if epoch.max_norm == LOOSE and all(made):
        expected.compare(observed, str(epoch), OLD / INITIAL_SCALE if epoch.dirty else None)
    if observed.steps < len(expected.rows) and not all(made):
        found = f"{observed.steps} steps instead of {len(expected.rows)}"
        hint = "what the window that overflows leaves in .grad is still there. Zero after it, too"
        raise Mistake("stale-gradients", f"{epoch}: {found}: {hint}.")
    expected.compare_clipped(observed, str(epoch), epoch.max_norm)
    _judge_scheduler([*before, scheduler.last_epoch], scaler.get_scale(), made, epoch)
    _judge_scale(scaler.get_scale(), made, epoch)
    _judge_log(losses, log, made, epoch)


def _call(
    answer: Callable,
    epoch: Epoch,
    model: nn.Module,
    batches: list[Batch],
    loss_fn: Callable,
    optimizer: Optimizer,
    scaler: GradScaler,
    scheduler: LRScheduler,
) -> object:
    """Calls the answer with a generator of the micro-batches, and names what the scaler or the generator refuses."""
    hint = "the scaler refuses to step for a window without a token"
    try:
        with scaler_refusals(str(epoch), ("empty-step", hint, "inf checks") if 0 in epoch.tokens else None):
            return answer(
                model, (batch for batch in batches), loss_fn, optimizer, epoch.n, lambda batch: batch.tokens, scaler,
                epoch.max_norm, scheduler,
            )  # fmt: skip
    except TypeError as error:
        if "has no len()" not in str(error):
            raise
        raise Mistake("needs-length", f"{epoch}: the loader is a generator and has no length.") from None


def _judge_scheduler(found: list[int], scale: float, made: list[bool], epoch: Epoch) -> None:
    """`found`: how often the scheduler had stepped before each update, and at the end."""
    want = list(range(sum(made) + 1))
    if found == want:
        return
    if found[-1] == 0:
        hint = "it never steps"
    elif found[-1] == len(made):
        hint = "it steps although the scaler left a step out" if not all(made) else "step it after the optimizer"
    elif found[-1] >= sum(tokens > 0 for tokens in epoch.tokens):
        hint = "it steps per micro-batch"
    elif epoch.scaled:
        hint = f"the scale went from {INITIAL_SCALE:g} to {scale:g}"
    else:
        hint = "one should follow each update"
    counts = f"scheduler steps before each update, and at the end: {found}, expected {want}"
    raise Mistake("scheduler-cadence", f"{epoch}: {counts}: {hint}.")


def _judge_scale(scale: float, made: list[bool], epoch: Epoch) -> None:
    want, in_a_row = INITIAL_SCALE, 0
    for is_made in made:
        in_a_row = in_a_row + 1 if is_made else 0
        want *= 0.5 if not is_made else 2 if in_a_row % 2 == 0 else 1
    if epoch.scaled and scale != want:
        raise Mistake("scaler-timing", f"{epoch}: the scale is {scale:g} at the end instead of {want:g}.")


def _judge_log(losses: object, want: list[float], made: list[bool], epoch: Epoch) -> None:
    try:
        logged = [float(loss) for loss in losses]
    except (TypeError, ValueError, RuntimeError):
        hint = "all updates are correct; return the list of the windows' losses"
        raise Mistake("wrong-type", f"{epoch}: {hint}.") from None
    if 0 in epoch.tokens and any(map(isnan, logged)):
        hint = "a micro-batch without a token has a mean loss of NaN: leave it out"
        raise Mistake("empty-micro-batch", f"{epoch}: the log holds NaN; {hint}.")
    # An infinite loss, or a NaN, may be logged in any way.
    found, correct = (list(compress(losses, made)) for losses in (logged, want))
    if len(logged) != len(want) or not close(found, correct):
        message = f"all updates are correct, but the log is {rounded(logged)} instead of {rounded(want)}"
        raise Mistake("logged-loss", f"{epoch}: {message}: one mean over each window's tokens, without the scale.")


def _judge_model(answer: Callable, epoch: Epoch) -> None:
    """Compares every parameter of a real model."""
    batches = epoch.batches(random_batches((4,) * len(epoch.tokens)))

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        return squared_error(model, batch.rows[: batch.tokens]) * batch.factor

    def train(model: nn.Module, optimizer: Optimizer) -> None:
        for p in model.parameters():
            p.grad = torch.ones_like(p) if epoch.dirty else None
        scaler = GradScaler("cpu", init_scale=INITIAL_SCALE, enabled=epoch.scaled)
        _call(answer, epoch, model, batches, loss_fn, optimizer, scaler, make_scheduler(optimizer))

    rows = [batch.rows[: batch.tokens] * batch.factor for batch in batches]  # infinite in one that overflows
    groups = [group for group in windows(rows, epoch.n) if any(map(len, group))]
    correct = large_batches(groups, epoch.max_norm, 1e9, make_scheduler)
    judge_model(train, correct, mlp(3, 4, 2).double(), sgd, f"on a real model, {epoch}")
