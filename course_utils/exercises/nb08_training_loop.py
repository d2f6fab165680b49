"""The exercise of notebook 08: a training loop with a schedule that counts updates."""

import math

from torch.optim.lr_scheduler import LambdaLR

from course_utils.exercises.judging import compare, exercise, number
from course_utils.exercises.loop import Case, Loop
from course_utils.loops import train_epoch

EQUAL, TAIL, RAGGED = (2,) * 6, (2,) * 10, (4, 2, 1, 3, 2)
CASES = [
    Case(TAIL, n=4, epochs=1),  # the short window is where a length that is rounded down shows
    *(Case(sizes, n=n, epochs=2) for sizes, n in ((EQUAL, 2), (TAIL, 4), (TAIL, 1), (TAIL, 100), (RAGGED, 2))),
    *(Case(RAGGED, n=4, epochs=3), Case(EQUAL, n=2, epochs=2, old_gradient=True)),
]
STEPS, LENGTHS = "scheduler steps before each update", "updates that each schedule is made for"
MISTAKES = {
    STEPS: ("scheduler-cadence", "After which line has an update been made? One scheduler step belongs there."),
    LENGTHS: ("wrong-length", "Count the windows of one epoch first, the short one too. No window spans two epochs."),
}


def solution(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    scheduler = make_scheduler(optimizer, epochs * math.ceil(len(batches) / n))
    for _ in range(epochs):
        train_epoch(model, batches, loss_fn, optimizer, n, len, scheduler=scheduler)


def watch(answer, case):
    """Watches all epochs of a loop, and a schedule that changes nothing."""
    loop, lengths, before = Loop(case), [], []
    scheduler = LambdaLR(loop.optimizer, lambda _: 1.0)

    def make_scheduler(optimizer, updates):
        lengths.append(number(updates))
        return scheduler

    def train(batches):
        answer(loop.model, batches, loop.loss_fn, loop.optimizer, case.n, case.epochs, make_scheduler)

    loop.optimizer.register_step_post_hook(lambda *_: before.append(scheduler.last_epoch))
    seen = loop.run(train)
    loop.peak = 0  # the task leaves that open
    return {**seen, STEPS: before, LENGTHS: lengths}


@exercise("N = 1, 2, 4 and 100, short windows, 1 to 3 epochs: the schedule steps once per update, to its end.")
def scheduled(answer):
    compare(watch, answer, solution, CASES, **MISTAKES)
