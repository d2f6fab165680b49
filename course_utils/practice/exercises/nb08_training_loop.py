"""The exercise of notebook 08: a training loop with a schedule that counts updates."""

import math
from collections.abc import Callable

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from course_utils.loops import windows
from course_utils.practice.bench import Exercise, Seen, edits, number
from course_utils.practice.loop import Case, Loop

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


def watch(answer: Callable, case: Case) -> Seen:
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
    return seen | {"scheduler steps before each update": before, "updates that the schedule is made for": lengths}


LENGTH = "epochs * math.ceil(len(batches) / n)"
SCHEDULED = Exercise(
    "scheduled",
    "08_training_loop",
    watch,
    solution,
    cases=[
        # The short window of TAIL is where a length that is rounded down shows.
        *(Case((sizes,), n, epochs=2) for sizes, n in ((EQUAL, 2), (TAIL, 4), (TAIL, 1), (TAIL, 100), (RAGGED, 2))),
        *(Case((RAGGED,), 4, epochs=3), Case((TAIL,), 4)),
        *(Case((EQUAL,), 2, epochs=2, dirty=True), Case((RAGGED,), 2, factors=[(0, 1000.0)])),
        *(Case((RAGGED,), n, epochs=2, real=True) for n in (1, 2, 100)),
    ],
    edits=[
        *edits("wrong-length/short", LENGTH, "epochs * (len(batches) // n)"),
        *edits("wrong-length/one-epoch", LENGTH, "math.ceil(len(batches) / n)"),
        *edits("wrong-length/micro-batches", LENGTH, "epochs * len(batches)", "len(batches)"),
        *edits("scheduler-cadence/never", "scheduler.step()", ""),
    ],
    channels={
        "scheduler steps before each update": "scheduler-cadence/update",
        "updates that the schedule is made for": "wrong-length",
    },
)
