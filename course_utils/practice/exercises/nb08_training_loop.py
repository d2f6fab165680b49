"""The exercise of notebook 08: a training loop with a schedule that counts updates."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import ceil, inf, log2

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LinearLR, LRScheduler

from course_utils.loops import windows
from course_utils.models import mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, changed, number
from course_utils.practice.updates import (
    OLD,
    QUIET,
    Expected,
    judge_loud,
    judge_model,
    large_batches,
    random_batches,
    recorded_tally,
    sgd,
    squared_error,
)

EQUAL, TAIL, RAGGED = (2,) * 8, (2,) * 10, (4, 2, 1, 3, 2)

# Micro-batches, N and epochs. The short window of TAIL is where a length that is rounded down shows.
CASES = (
    (EQUAL[:6], 2, 2), (TAIL, 4, 2), (TAIL, 1, 2), (TAIL, 100, 2), (RAGGED, 2, 2), (RAGGED, 4, 3), (TAIL, 4, 1),
)  # fmt: skip


@exercise(
    "scheduled",
    hints={
        "wrong-length": "Count the windows of one epoch first, the short one too. No window spans two epochs.",
        "scheduler-cadence": "The scheduler steps before each update should be 0, 1, 2, ... Is yours inside the loop "
        "over micro-batches, before the optimizer's step, or in the loop over epochs?",
        "clip-limit": "The task asks for no clipping. Which of your lines limits a gradient?",
        "empty-step": "A step must not run on an empty .grad. Does something hide an error in your forward or backward "
        "pass?",
    },
)
def _scheduled(answer: Callable) -> str:
    for sizes, n, epochs in CASES:
        _judge_schedule(answer, sizes, n, epochs)
    _judge_schedule(answer, EQUAL, 4, 2, dirty=True)
    judge_loud(partial(_judge_schedule, answer, RAGGED, 2, 1))
    for n in (1, 2, 100):
        _judge_scheduled_model(answer, n)
    return (
        "N = 1, 2, 4 and longer than the epoch, short windows, ragged micro-batches, 1 to 3 epochs, old gradients: "
        "the schedule is as long as the training and steps once per update."
    )


def _judge_schedule(
    answer: Callable, sizes: Sequence[int], n: int, epochs: int, dirty: bool = False, loud: float = QUIET
) -> None:
    """Judges one run on a tally, whose loss is multiplied by `loud`.

    Its schedule halves the learning rate, which so counts the scheduler's steps.
    """
    tally, optimizer, recorder = recorded_tally(sum(sizes), 1.0, dirty)
    recorder.start_epoch()
    forwards, lengths, before = [], [], []  # `before`: the scheduler's steps before each update

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        if forwards and len(forwards) % len(sizes) == 0:
            recorder.start_epoch()
        forwards.append(batch)
        return model(batch).mean() * loud

    def make_scheduler(optimizer: Optimizer, updates: int) -> LRScheduler:
        lengths.append(number(updates))
        return LambdaLR(optimizer, lambda step: 0.5**step)

    def count_scheduler_steps(*_) -> None:
        lr = optimizer.param_groups[0]["lr"]
        before.append(round(0 - log2(lr), 6) if lr > 0 else inf)  # 0 - 0.0 is 0, and -0.0 would print as -0

    optimizer.register_step_post_hook(count_scheduler_steps)
    given, batches = (list(torch.arange(sum(sizes)).split(list(sizes))) for _ in range(2))
    answer(tally, batches, loss_fn, optimizer, n, epochs, make_scheduler)

    case = f"micro-batches of {list(sizes)} samples, N = {n}, {_epochs(epochs)}"
    case += ", and a gradient left by an earlier backward pass" if dirty else ""
    expected, observed = Expected(sizes, n, epochs), recorder.observed()
    observed.rows = [row / loud for row in observed.rows]
    how = changed(batches, given, "the list of micro-batches")
    if how and observed.steps:
        raise Mistake("changed-input", f"{case}: {how}; the caller, and the next epoch, need it as it was.")
    ran, rest = divmod(len(forwards), len(sizes))
    if ran and not rest and ran != epochs and observed.steps == ran * len(expected.windows):
        raise Mistake("wrong-length", f"{case}: {observed.steps} updates have run, as many as in {_epochs(ran)}.")
    expected.compare(observed, case, OLD / loud if dirty else None)
    _compare_length(lengths, expected, case)
    _compare_cadence(before, expected, case)


def _epochs(count: int) -> str:
    return "1 epoch" if count == 1 else f"{count} epochs"


def _compare_length(lengths: list[float], expected: Expected, case: str) -> None:
    if not lengths:
        raise Mistake("scheduler-cadence", f"{case}: no schedule was made, so the learning rate never changes.")
    if len(lengths) > 1:
        found = f"the schedule was made {len(lengths)} times, and starts over each time"
        raise Mistake("scheduler-cadence", f"{case}: {found}.")
    micro_batches, per_epoch, epochs = len(expected.sizes), len(expected.windows), expected.epochs
    if lengths[0] == per_epoch * epochs:
        return
    hints = {  # where two fit, the second is meant
        ceil(micro_batches * epochs / expected.n): "a window never spans two epochs",
        micro_batches // expected.n * epochs: "the short window of each epoch makes an update too",
        per_epoch: "that is one epoch",
        micro_batches: "these are the micro-batches of one epoch",
        micro_batches * epochs: "that counts micro-batches",
    }
    hint = hints.get(lengths[0], "count the windows of an epoch, the short one too, and multiply by the epochs")
    found = f"a schedule for {lengths[0]:g} updates, {per_epoch * epochs} will run"
    raise Mistake("wrong-length", f"{case}: {found}; {hint}.")


def _compare_cadence(before: list[float], expected: Expected, case: str) -> None:
    per_epoch, want = len(expected.windows), list(range(len(expected.rows)))
    if before == want:
        return
    if set(before) == {0}:
        hint = "it never steps"
    elif before[0] == 1 and {after - earlier for earlier, after in pairwise(before)} <= {1}:
        hint = "the first update should use the first learning rate: step the scheduler after the optimizer"
    elif before == [k // per_epoch for k in want]:
        hint = "it steps once per epoch"
    elif max(before) > want[-1]:
        hint = "it steps more often than the optimizer"
    else:
        hint = "one scheduler step should follow each update"
    found = f"scheduler steps before each update [{', '.join(f'{count:g}' for count in before)}], expected {want}"
    raise Mistake("scheduler-cadence", f"{case}: {found}: {hint}.")


def _judge_scheduled_model(answer: Callable, n: int) -> None:
    """Compares every parameter of a real model, under a schedule that falls to 0."""
    batches = random_batches(RAGGED)

    def make_scheduler(optimizer: Optimizer, updates: int) -> LRScheduler:
        return LinearLR(optimizer, 1.0, 0.0, total_iters=int(number(updates)))

    def train(model: nn.Module, optimizer: Optimizer) -> None:
        answer(model, list(batches), squared_error, optimizer, n, 2, make_scheduler)

    groups = [*windows(batches, n)] * 2
    correct = large_batches(groups, make_scheduler=partial(make_scheduler, updates=len(groups)))
    judge_model(train, correct, mlp(3, 4, 2).double(), sgd, f"on a real model, N = {n}, 2 epochs")
