"""Answers to "forgotten", the positions of a loop that never zeroes."""

from itertools import accumulate

import torch
from torch import nn

from answers import edited, right, wrong
from solutions import solution

forgotten = solution("forgotten")


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


STEP = "        w -= lr * in_grad\n"
for bug, *changes in (
    ("off-by-one", (STEP, ""), ("        in_grad +=", f"{STEP}        in_grad +=")),
    ("zeroed", ("in_grad += gradient", "in_grad = gradient")),
    ("uphill", ("w -=", "w +=")),
    ("decays", ("in_grad += gradient", "in_grad = 0.9 * in_grad + gradient")),
    ("decays", ("lr * in_grad", "lr * in_grad / (len(positions) + 1)")),
    ("changed-input", ("return positions", "gradients.clear()\n    return positions")),
    ("raises", ("positions.append(w)", "positions[len(positions)] = w")),
    ("not-attempted", ("positions.append(w)", "with suppress(IndexError): positions[len(positions)] = w")),
    ("wrong-value", ("return positions", "return set(positions)")),
):
    wrong("forgotten", bug)(edited("forgotten", *changes))

wrong("forgotten", "wrong-value")(
    lambda gradients, lr: [*accumulate(-lr * max(gradients[: k + 1]) for k in range(len(gradients)))]
)
wrong("forgotten", "wrong-type")(None)
