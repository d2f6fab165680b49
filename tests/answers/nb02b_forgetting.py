"""Answers to "forgotten", the positions of a loop that never zeroes."""

import math
from contextlib import suppress
from itertools import accumulate

import numpy as np
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


@right("forgotten")
def by_counting_how_often_each_is_used(gradients: list[float], lr: float) -> list[float]:
    count = len(gradients)
    return [-lr * sum((i + 1 - k) * gradients[k] for k in range(i + 1)) for i in range(count)]


@right("forgotten")
def by_slices(gradients, lr):
    if not gradients:
        return []
    positions = [-lr * gradients[0]]
    for i in range(1, len(gradients)):
        positions.append(positions[-1] - lr * sum(gradients[: i + 1]))
    return positions


@right("forgotten")
def by_numpy(gradients, lr):
    return -lr * np.cumsum(np.cumsum(gradients))


@right("forgotten")
def as_a_tuple_of_float32(gradients, lr):
    return tuple((torch.tensor(gradients).cumsum(0) * -lr).cumsum(0))


@right("forgotten")
def over_a_copy_that_is_emptied(gradients, lr):
    waiting, w, held, positions = list(gradients), 0.0, 0.0, []
    while waiting:
        held += waiting.pop(0)
        w -= lr * held
        positions += [w]
    return positions


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
wrong("forgotten", "zeroed")(lambda gradients, lr: [-lr * gradient for gradient in gradients])
wrong("forgotten", "zeroed")(lambda gradients, lr: [-lr * held for held in accumulate(gradients)])
wrong("forgotten", "decays", says="it moves by [1.0, 0.5, 0.25, 0.125, 0.062]")(with_momentum(0.5))
wrong("forgotten", "decays")(with_momentum(0.9))
wrong("forgotten", "decays")(with_momentum(0.99))
wrong("forgotten", "uphill")(lambda gradients, lr: [lr * total for total in accumulate(accumulate(gradients))])
wrong("forgotten", "off-by-one")(lambda gradients, lr: [0.0, *steps_without_zero(gradients, lr)])
wrong("forgotten", "off-by-one")(lambda gradients, lr: steps_without_zero(gradients, lr)[:-1])
wrong("forgotten", "off-by-one")(lambda gradients, lr: steps_without_zero(gradients, lr)[1:])
wrong("forgotten", "last-only")(lambda gradients, lr: [steps_without_zero(gradients, lr)[-1] for _ in gradients])


@wrong("forgotten", "changed-input")
def empties_the_list(gradients, lr):
    w, held, positions = 0.0, 0.0, []
    while gradients:
        held += gradients.pop(0)
        w -= lr * held
        positions.append(w)
    return positions


@wrong("forgotten", "changed-input")
def adds_up_in_place(gradients, lr):
    for i in range(1, len(gradients)):
        gradients[i] += gradients[i - 1]
    return list(accumulate(-lr * held for held in gradients))


@wrong("forgotten", "changed-input")
def writes_positions_into_the_gradients(gradients, lr):
    gradients[:] = steps_without_zero(gradients, lr)
    return gradients


@wrong("forgotten", "changed-input")
def sorts_the_list(gradients, lr):
    gradients.sort()
    return steps_without_zero(gradients, lr)


@wrong("forgotten", "wrong-value")
def uses_the_largest(gradients, lr):
    return list(accumulate(-lr * max(gradients[: i + 1]) for i in range(len(gradients))))


@wrong("forgotten", "zeroed")
def begins_anew_in_the_loop(gradients, lr):
    w, positions = 0.0, []
    for gradient in gradients:
        held = 0.0
        held += gradient
        w -= lr * held
        positions.append(w)
    return positions


@wrong("forgotten", "zeroed")
def begins_the_position_anew(gradients, lr):
    held, positions = 0.0, []
    for gradient in gradients:
        held += gradient
        positions.append(0.0 - lr * held)
    return positions


@wrong("forgotten", "off-by-one")
def leaves_out_its_own_gradient(gradients, lr):
    w, positions = 0.0, []
    for i in range(len(gradients)):
        w -= lr * sum(gradients[:i])
        positions.append(w)
    return positions


@wrong("forgotten", "raises")
def begins_with_the_first(gradients, lr):
    positions = [-lr * gradients[0]]
    for i in range(1, len(gradients)):
        positions.append(positions[-1] - lr * sum(gradients[: i + 1]))
    return positions


@wrong("forgotten", "wrong-value")
def returns_inside_the_loop(gradients, lr):
    w, held, positions = 0.0, 0.0, []
    for gradient in gradients:
        held += gradient
        w -= lr * held
        positions.append(w)
        return positions
    return positions


@wrong("forgotten", "wrong-value")
def adds_the_rate_twice(gradients, lr):
    w, held, positions = 0.0, 0.0, []
    for gradient in gradients:
        held += lr * gradient
        w -= lr * held
        positions.append(w)
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
wrong("forgotten", "low-precision")(lambda gradients, lr: [int(w) for w in steps_without_zero(gradients, lr)])
wrong("forgotten", "low-precision")(
    lambda gradients, lr: [float(f"{w:.2f}") for w in steps_without_zero(gradients, lr)]
)
wrong("forgotten", "wrong-type")(lambda gradients, lr: set(steps_without_zero(gradients, lr)))
wrong("forgotten", "wrong-type")(lambda gradients, lr: dict(enumerate(steps_without_zero(gradients, lr))))
wrong("forgotten", "wrong-type")(lambda gradients, lr: str(steps_without_zero(gradients, lr)))
wrong("forgotten", "wrong-value")(lambda gradients, lr: [1 + w for w in steps_without_zero(gradients, lr)])
wrong("forgotten", "wrong-value")(lambda gradients, lr: steps_without_zero(gradients, lr)[::-1])
wrong("forgotten", "wrong-value")(lambda gradients, lr: list(accumulate(gradients)))
wrong("forgotten", "not-attempted")(lambda gradients, lr: print(steps_without_zero(gradients, lr)))
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
