"""Answers to "forgotten", the positions of a loop that never zeroes."""

import torch
from torch import nn

from answers import edited, right, wrong


@right("forgotten")
def by_momentum(gradients, lr):
    w = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=lr, momentum=1.0)
    for gradient in gradients:
        optimizer.zero_grad()
        (gradient * w).backward()
        optimizer.step()
        yield w.item()


right("forgotten")(lambda gradients, lr: -lr * torch.tensor(gradients, dtype=torch.float64).cumsum(0).cumsum(0))

STEP = "        w -= lr * in_grad\n"
for bug, *changes in (
    ("zeroed", ("in_grad += gradient", "in_grad = gradient")),
    ("uphill", ("w -=", "w +=")),
    ("off-by-one", (STEP, ""), ("        in_grad +=", f"{STEP}        in_grad +=")),
    ("wrong-value", ("in_grad += gradient", "in_grad = 0.9 * in_grad + gradient")),
    ("changed-input", ("return positions", "gradients.clear()\n    return positions")),
    ("raises", ("positions.append(w)", "positions[len(positions)] = w")),
    ("not-attempted", ("positions.append(w)", "with suppress(IndexError): positions[len(positions)] = w")),
    ("wrong-value", ("return positions", "return set(positions)")),
):
    wrong("forgotten", bug)(edited("forgotten", *changes))
wrong("forgotten", "wrong-type")(None)
