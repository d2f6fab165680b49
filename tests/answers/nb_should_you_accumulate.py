"""Answers to "compare_batches": a comparison at equal samples, with a learning rate of its own for each batch."""

from math import inf, isnan

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


@right("compare_batches")
def a_wide_grid_at_once(train, samples, batches, grid):
    rates = [grid[0] * 2.0**k for k in range(-8, 12)]
    found = {}
    for batch in batches:
        pairs = [(train(batch, samples / batch, lr), lr) for lr in rates]
        loss, lr = min(pair for pair in pairs if not isnan(pair[0]))
        found[batch] = (lr, loss)
    return found


@wrong("compare_batches", "one-learning-rate", says="another batch's")
def the_first_batches_learning_rate(train, samples, batches, grid):
    lr, _ = solution("compare_batches")(train, samples, batches[:1], grid)[batches[0]]
    return {batch: (lr, train(batch, samples // batch, lr)) for batch in batches}


@wrong("compare_batches", "nan-is-best", says="diverged")
def argmin_takes_nan(train, samples, batches, grid):
    found = {}
    for batch in batches:
        rates = [grid[0] * 2.0**k for k in range(-8, 12)]
        losses = torch.tensor([train(batch, samples // batch, lr) for lr in rates])
        found[batch] = rates[losses.argmin()], losses.min()
    return found


FOUND = "best, losses[best]"
IN_THE_GRID = ("if best == min(losses):", "if False:"), ("elif best == max(losses):", "elif False:")
for bug, says, *changes in (
    ("equal-updates", "read", ("samples // batch", "samples // batches[0]"), *IN_THE_GRID),
    ("stops-at-the-end", "with loss 2.650; the grid ends there", *IN_THE_GRID),
    ("other-batch", "", ("train(batch, samples // batch", "train(2 * batch, samples // batch // 2"), *IN_THE_GRID),
    ("not-the-loss", "", (FOUND, "best")),
    ("endless", "", ("while to_try:", "while to_try := list(grid):")),
    ("unfinished", "no entry for 64", ("in batches:", "in batches[:1]:")),
    ("wrong-type", "", ("return found", "return list(found.items())")),
    ("wrong-value", "", ("best = min(losses, key", "best = max(losses, key"), *IN_THE_GRID),
):
    wrong("compare_batches", bug, says)(edited("compare_batches", *changes))
wrong("compare_batches", "not-attempted")(lambda *_: {})
