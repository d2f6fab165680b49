"""The exercise of notebook 08: a training loop with a schedule that counts updates."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from course_utils.exercises.judging import Seen, compare, exercise, number
from course_utils.exercises.loop import Case, Loop
from course_utils.loops import windows

STEPS, SCHEDULERS = "scheduler steps before each update", "schedules that the function makes"
LENGTHS = "updates that the schedule is made for"
EQUAL, TAIL, RAGGED = (2,) * 6, (2,) * 10, (4, 2, 1, 3, 2)


def solution(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    scheduler = make_scheduler(optimizer, epochs * math.ceil(len(batches) / n))
    optimizer.zero_grad()
    for _ in range(epochs):
        for window in windows(batches, n):
            total = sum(len(batch) for batch in window)
            for batch in window:
                loss = loss_fn(model, batch) * (len(batch) / total)
                loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


@dataclass(frozen=True)
class Epochs(Case):
    """A case whose loop makes the epochs itself.

    Args:
        epochs: How many.
    """

    epochs: int = 1

    @property
    def passes(self) -> int:
        return self.epochs


def watch(answer: Callable, case: Epochs) -> Seen:
    """Watches all epochs of a loop, and the schedule that it makes, which halves the learning rate at each step."""
    loop, lengths, schedulers, before = Loop(case), [], [], []

    def make_scheduler(optimizer: Optimizer, updates: int) -> LRScheduler:
        lengths.append(number(updates))
        schedulers.append(LambdaLR(optimizer, lambda step: 0.5**step))
        return schedulers[-1]

    def train(batches: list[Tensor]) -> object:
        return answer(loop.model, batches, loop.loss_fn, loop.optimizer, case.n, case.epochs, make_scheduler)

    loop.optimizer.register_step_post_hook(lambda *_: before.append(sum(each.last_epoch for each in schedulers)))
    seen = {what: found for what, found in loop.run(train).items() if what != "memory"}  # the task leaves that open
    return seen | {SCHEDULERS: len(schedulers), STEPS: before, LENGTHS: lengths}


CASES = [
    # The short window of TAIL is where a length that is rounded down shows.
    *(Epochs((sizes,), n, epochs=2) for sizes, n in ((EQUAL, 2), (TAIL, 4), (TAIL, 1), (TAIL, 100), (RAGGED, 2))),
    *(Epochs((RAGGED,), 4, epochs=3), Epochs((TAIL,), 4)),
    *(Epochs((EQUAL,), 2, epochs=2, dirty=True), Epochs((RAGGED,), 2, factors=[(0, 1000.0)])),
    *(Epochs((RAGGED,), n, epochs=2, real=True) for n in (1, 2, 100)),
]


@exercise
def scheduled(answer):
    cadence = "Is yours inside the loop over micro-batches, before the optimizer's step, or in the loop over epochs?"
    channels = {
        STEPS: ("scheduler-cadence", "one scheduler step should follow each update, and the first update use the first "
                "learning rate", f"The scheduler steps before each update should be 0, 1, 2, ... {cadence}"),
        SCHEDULERS: ("scheduler-cadence", "one schedule covers the whole training",
                     "Where do you call `make_scheduler`, and how often is that line reached?"),
        LENGTHS: ("wrong-length", "count the windows of all epochs, the short ones too",
                  "Count the windows of one epoch first, the short one too. No window spans two epochs."),
    }  # fmt: skip
    compare(watch, answer, solution, CASES, channels)
    return (
        "N = 1, 2, 4 and longer than the epoch, short windows, ragged micro-batches, 1 to 3 epochs, old gradients: the "
        "schedule is as long as the training and steps once per update."
    )
