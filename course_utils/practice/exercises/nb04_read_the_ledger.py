"""The exercise of notebook 04 that asks which loop has made a ledger."""

from collections.abc import Callable

import torch
from torch import nn

from course_utils.practice.exercises import exercise
from course_utils.practice.ordering import letters
from course_utils.practice.reading import Riddle

# The loops of "read the ledger", as the notebook shows them.


def loop_a(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for number, batch in enumerate(batches, start=1):
        (loss_fn(model, batch) / n).backward()
        if number % n == 0:
            optimizer.step()
            optimizer.zero_grad()


def loop_b(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for number, batch in enumerate(batches, start=1):
        loss_fn(model, batch).backward()
        if number % n == 0:
            optimizer.step()
            optimizer.zero_grad()


def loop_c(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for number, batch in enumerate(batches, start=1):
        loss_fn(model, batch).backward()
        if number % n == 0:
            for p in model.parameters():
                p.grad /= n
            optimizer.step()
            optimizer.zero_grad()


def loop_d(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for number, batch in enumerate(batches, start=1):
        (loss_fn(model, batch) / n).backward()
        if number % n == 0:
            optimizer.step()


def _run_with_gradients_of_one(loop: Callable) -> None:
    """Eight micro-batches in windows of four, each of which has a gradient of exactly 1, at any weights."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.ones(8, 2, 1, dtype=torch.float64)
    loop(model, batches, lambda model, batch: model(batch).mean(), optimizer, 4)


LOOPS = {"A": loop_a, "B": loop_b, "C": loop_c, "D": loop_d}
_riddle = Riddle("read_the_ledger", LOOPS, "CB", _run_with_gradients_of_one)


@exercise(
    "read_the_ledger",
    notebook="04_accumulation",
    takes=(str, list, tuple),
    hints={
        "other-order": "Between the last backward pass of a window and its step, what does the ledger show?",
        "other-heights": "One micro-batch has a gradient of norm 1. How high is the first rise in the ledger?",
    },
)
def _read_the_ledger(answer: str | list | tuple) -> str:
    order = letters(answer, LOOPS)
    _riddle.compare(order)
    return f"the records of loops {' and '.join(order)} are those of the two ledgers, event by event."
