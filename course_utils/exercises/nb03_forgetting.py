"""The exercise of notebook 03: a test at learning rate 0 runs on loops that zero, and on others."""

from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from course_utils.exercises.judging import exercise, same, truth


def loop(model, batches, loss_fn, optimizer, zero, at="end"):
    for number, batch in enumerate(batches, start=1):
        loss = loss_fn(model, batch)
        if at == "backward":
            zero(number, model, optimizer)
        loss.backward()
        optimizer.step()
        if at == "end":
            zero(number, model, optimizer)


def zeros(number, model, optimizer):
    optimizer.zero_grad(set_to_none=False)


CASES = (  # the bug of a test that is wrong on it, what it is, how it zeroes, where
    ("misses-it", "a loop that never zeroes", lambda *_: None, "end"),
    ("accuses", "a loop that zeroes after each step", lambda number, model, optimizer: model.zero_grad(), "end"),
    ("accuses", "a loop that writes zeros after each step", zeros, "end"),
    ("accuses", "a loop that zeroes right before backward()", zeros, "backward"),
    ("too-few-steps", "a loop that zeroes after steps 1, 3, 5...", lambda n, m, o: n % 2 and o.zero_grad(), "end"),
    ("too-few-steps", "a loop that zeroes after steps 2 and 4", lambda n, m, o: n % 2 or o.zero_grad(), "end"),
    ("one-layer", "a loop that zeroes its first layer only", lambda number, model, o: model[0].zero_grad(), "end"),
    ("one-layer", "a loop that zeroes its last layer only", lambda number, model, o: model[-1].zero_grad(), "end"),
)
HINTS = {
    "misses-it": "Print what you noted. Is each entry the same tensor, `.grad` itself, to which later passes add?",
    "accuses": "Two gradients are equal if weights and batch are. Do you look at every step, and at nothing else?",
    "too-few-steps": "How many updates does your test compare, and which with which?",
    "one-layer": "Which weights does your test look at?",
}


@exercise("your test finds the 5 loops that use old gradients, and passes the 3 that don't.")
def forgets(answer):
    x, y = torch.randn(8, 3), torch.randint(2, (8,))
    for bug, what, zero, at in CASES:
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        tried = partial(loop, zero=zero, at=at)
        said = truth(answer(tried, model, (x, y), lambda model, batch: cross_entropy(model(batch[0]), batch[1])))
        same(what, said, bug != "accuses", bug, HINTS[bug])
