"""Answers to "forgotten", the positions of a loop that never zeroes."""

import math
from itertools import accumulate

import torch
from torch import nn

from answers import outcomes, right, wrong


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


@wrong("forgotten", "decays")
def last_two(gradients, lr):
    pairs = zip([0.0, *gradients], gradients, strict=False)
    return list(accumulate(-lr * (before + now) for before, now in pairs))


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
wrong("forgotten", "zeroed")(lambda gradients, lr: [-lr * held for held in accumulate(gradients)])
wrong("forgotten", "decays", says="it moves by [1.0, 0.5, 0.25, 0.125, 0.062]")(with_momentum(0.5))
wrong("forgotten", "decays")(with_momentum(0.9))
wrong("forgotten", "decays")(with_momentum(0.99))
wrong("forgotten", "uphill")(lambda gradients, lr: [lr * total for total in accumulate(accumulate(gradients))])
wrong("forgotten", "off-by-one")(lambda gradients, lr: [0.0, *steps_without_zero(gradients, lr)])
wrong("forgotten", "off-by-one")(lambda gradients, lr: steps_without_zero(gradients, lr)[:-1])
wrong("forgotten", "off-by-one")(lambda gradients, lr: steps_without_zero(gradients, lr)[1:])
wrong("forgotten", "last-only")(lambda gradients, lr: [steps_without_zero(gradients, lr)[-1] for _ in gradients])
wrong("forgotten", "not-attempted")(lambda *_: None)
wrong("forgotten", "not-attempted")(lambda *_: ...)
wrong("forgotten", "not-attempted")(lambda *_: [])
wrong("forgotten", "wrong-type")(lambda gradients, lr: -lr * sum(gradients))
wrong("forgotten", "wrong-type")(lambda *_: torch.tensor(1.0))
wrong("forgotten", "wrong-type")(lambda *_: "positions")
wrong("forgotten", "wrong-type")(lambda *_: [1.0, "x"])
wrong("forgotten", "wrong-type")(lambda *_: 1j)
wrong("forgotten", "wrong-value")(lambda gradients, lr: [math.nan] * len(gradients))
wrong("forgotten", "wrong-value")(lambda gradients, lr: [-total for total in accumulate(accumulate(gradients))])
wrong("forgotten", "wrong-value")(with_momentum(1.1))
wrong("forgotten", "wrong-value")(with_momentum(-1.0))
wrong("forgotten", "wrong-value")(lambda gradients, lr: iter(lambda: 0.0, 1.0))
wrong("forgotten", "raises")(lambda: [])
wrong("forgotten", "raises")(lambda gradients, lr: gradients[99])
wrong("forgotten", "raises")(lambda gradients, lr: gradients.clear() or 1 / 0)
wrong("forgotten", "not-a-function")(None)
wrong("forgotten", "not-a-function")(3)


@outcomes("forgotten", reference=steps_without_zero)
def outcomes_of_forgotten(answer):
    for lr, count in ((0.3, 6), (1.0, 2), (0.5, 1), (0.1, 0)):
        gradients = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(count)).tolist()
        yield lambda lr=lr, gradients=gradients: [float(w) for w in answer(list(gradients), lr)]
