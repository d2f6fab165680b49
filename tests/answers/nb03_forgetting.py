"""Answers to "forgotten", the positions of a loop that never zeroes."""

from contextlib import suppress
from itertools import accumulate

import torch
from torch import nn

from answers import right, wrong


@right("forgotten")
def steps_without_zero(gradients, lr):
    w, held, positions = 0.0, 0.0, []
    for gradient in gradients:
        held += gradient
        w -= lr * held
        positions.append(w)
    return positions


@right("forgotten")
def by_two_running_sums(gradients, lr):
    return [-lr * total for total in accumulate(accumulate(gradients))]


@right("forgotten")
def by_a_real_loop(gradients, lr):
    w = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=lr)
    positions = []
    for gradient in gradients:
        (gradient * w).backward()
        optimizer.step()
        positions.append(w.detach().clone())
    return positions


@right("forgotten")
def by_momentum(gradients, lr):
    w = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=lr, momentum=1.0)
    for gradient in gradients:
        optimizer.zero_grad()
        (gradient * w).backward()
        optimizer.step()
        yield w.item()


@right("forgotten")
def as_a_tensor(gradients, lr):
    return -lr * torch.tensor(gradients, dtype=torch.float64).cumsum(0).cumsum(0)


@wrong("forgotten", "decays")
def mean_of_all(gradients, lr):
    w, positions = 0.0, []
    for count, held in enumerate(accumulate(gradients), start=1):
        w -= lr * held / count
        positions.append(w)
    return positions


@wrong("forgotten", "off-by-one")
def steps_before_backward(gradients, lr):
    w, held, positions = 0.0, 0.0, []
    for gradient in gradients:
        w -= lr * held
        positions.append(w)
        held += gradient
    return positions


@wrong("forgotten", "last-only")
def one_tensor_many_times(gradients, lr):
    w = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=lr)
    positions = []
    for gradient in gradients:
        (gradient * w).backward()
        optimizer.step()
        positions.append(w.detach())
    return positions


def with_momentum(momentum):
    def decays(gradients, lr):
        w, held, positions = 0.0, 0.0, []
        for gradient in gradients:
            held = momentum * held + gradient
            w -= lr * held
            positions.append(w)
        return positions

    return decays


wrong("forgotten", "zeroed")(lambda gradients, lr: list(accumulate(-lr * gradient for gradient in gradients)))
wrong("forgotten", "uphill")(lambda gradients, lr: [lr * total for total in accumulate(accumulate(gradients))])


@wrong("forgotten", "changed-input")
def empties_the_list(gradients, lr):
    w, held, positions = 0.0, 0.0, []
    while gradients:
        held += gradients.pop(0)
        w -= lr * held
        positions.append(w)
    return positions


@wrong("forgotten", "wrong-value")
def uses_the_largest(gradients, lr):
    return list(accumulate(-lr * max(gradients[: i + 1]) for i in range(len(gradients))))


@wrong("forgotten", "raises")
def begins_with_the_first(gradients, lr):
    positions = [-lr * gradients[0]]
    for i in range(1, len(gradients)):
        positions.append(positions[-1] - lr * sum(gradients[: i + 1]))
    return positions


@wrong("forgotten", "not-attempted")
def swallows_its_error(gradients, lr):
    w, positions = 0.0, []
    with suppress(IndexError):
        for i, gradient in enumerate(gradients):
            w -= lr * gradient
            positions[i] = w
    return positions


wrong("forgotten", "low-precision")(lambda gradients, lr: [round(w, 3) for w in steps_without_zero(gradients, lr)])
wrong("forgotten", "wrong-type")(lambda gradients, lr: set(steps_without_zero(gradients, lr)))
wrong("forgotten", "not-a-function")(None)
