"""Answers to "compare_batches": a comparison at equal samples, with a learning rate of its own for each batch."""

from math import inf, isnan

import torch

from answers import right, wrong


def search(train, samples, batch, grid, worst=inf):
    """Learning rates and losses of a batch, until the best has neighbours on both sides."""
    losses, to_try = {}, list(grid)
    while to_try:
        for lr in to_try:
            loss = train(batch, samples // batch, lr)
            losses[lr] = worst if isnan(loss) else loss
        best = min(sorted(losses), key=losses.get)
        to_try = [best / 2] if best == min(losses) else [best * 2] if best == max(losses) else []
    return losses


@right("compare_batches")
def extends_until_inside(train, samples, batches, grid):
    found = {}
    for batch in batches:
        losses = search(train, samples, batch, grid)
        best = min(losses, key=losses.get)
        found[batch] = best, losses[best]
    return found


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


@wrong("compare_batches", "equal-updates", says="read")
def as_many_updates_for_all(train, samples, batches, grid):
    return {batch: min((train(batch, samples // batches[0], lr), lr) for lr in grid)[::-1] for batch in batches}


@wrong("compare_batches", "one-learning-rate", says="another batch's")
def the_first_batches_learning_rate(train, samples, batches, grid):
    losses = search(train, samples, batches[0], grid)
    lr = min(losses, key=losses.get)
    return {batch: (lr, train(batch, samples // batch, lr)) for batch in batches}


@wrong("compare_batches", "stops-at-the-end", says="with loss 2.650; the grid ends there")
def stays_in_the_grid(train, samples, batches, grid):
    return {batch: min((train(batch, samples // batch, lr), lr) for lr in grid)[::-1] for batch in batches}


@wrong("compare_batches", "nan-is-best", says="diverged")
def argmin_takes_nan(train, samples, batches, grid):
    found = {}
    for batch in batches:
        rates = [grid[0] * 2.0**k for k in range(-8, 12)]
        losses = torch.tensor([train(batch, samples // batch, lr) for lr in rates])
        best = int(losses.argmin())
        found[batch] = rates[best], losses[best]
    return found


@wrong("compare_batches", "not-the-loss")
def learning_rates_alone(train, samples, batches, grid):
    return {batch: pair[0] for batch, pair in extends_until_inside(train, samples, batches, grid).items()}


@wrong("compare_batches", "endless")
def never_stops(train, samples, batches, grid):
    lr = grid[0]
    while True:
        train(batches[0], samples // batches[0], lr)


@wrong("compare_batches", "other-batch")
def a_batch_of_its_own(train, samples, batches, grid):
    return {batch: (grid[0], train(2 * batch, samples // batch // 2, grid[0])) for batch in batches}


@wrong("compare_batches", "unfinished", says="no entry for 64")
def the_first_alone(train, samples, batches, grid):
    return extends_until_inside(train, samples, batches[:1], grid)


@wrong("compare_batches", "wrong-type")
def a_list(train, samples, batches, grid):
    return list(extends_until_inside(train, samples, batches, grid).items())


@wrong("compare_batches", "wrong-value")
def the_worst(train, samples, batches, grid):
    return {batch: max((train(batch, samples // batch, lr), lr) for lr in grid)[::-1] for batch in batches}


@wrong("compare_batches", "not-attempted")
def untouched(train, samples, batches, grid):
    return {}
