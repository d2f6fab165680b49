"""Answers to "compare_batches": a comparison at equal samples, with a learning rate of its own for each batch."""

from math import inf

import torch

from answers import edited, right, wrong
from solutions import solution


@right("compare_batches")
def walks_downhill(train, samples, batches, grid):
    found = {}
    for batch in batches:

        def loss_at(lr, batch=batch):
            return torch.tensor(train(batch, samples // batch, lr)).nan_to_num(inf)

        lr, best = grid[0], loss_at(grid[0])
        while best == inf:
            lr /= 2
            best = loss_at(lr)
        for factor in (2, 0.5):
            while (loss := loss_at(lr * factor)) < best:
                lr, best = lr * factor, loss
        found[batch] = [lr, best]
    return found


@wrong("compare_batches", "wrong-value", says="batches of 64")
def the_first_batches_learning_rate(train, samples, batches, grid):
    lr, _ = solution("compare_batches")(train, samples, batches[:1], grid)[batches[0]]
    return {batch: (lr, train(batch, samples // batch, lr)) for batch in batches}


@wrong("compare_batches", "wrong-value", says="nan]")
def argmin_takes_nan(train, samples, batches, grid):
    found = {}
    for batch in batches:
        rates = [grid[0] * 2.0**k for k in range(-8, 12)]
        losses = torch.tensor([train(batch, samples // batch, lr) for lr in rates])
        found[batch] = rates[losses.argmin()], losses.min()
    return found


IN_THE_GRID = ("if best == min(losses):", "if False:"), ("elif best == max(losses):", "elif False:")
for bug, says, *changes in (
    ("equal-updates", "read", ("samples // batch", "samples // batches[0]"), *IN_THE_GRID),
    ("wrong-value", "0.0078125, 2.65]", *IN_THE_GRID),
    ("wrong-type", "got 0.0009765625", ("best, losses[best]", "best")),
    ("wrong-type", "entries for [4, 64, 512]", ("in batches:", "in batches[:1]:")),
    ("wrong-value", "", ("best = min(losses, key", "best = max(losses, key"), *IN_THE_GRID),
):
    wrong("compare_batches", bug, says)(edited("compare_batches", *changes))
