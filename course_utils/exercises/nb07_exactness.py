"""The exercise of notebook 07: a test of exactness runs against windows that are exact or not."""

from copy import deepcopy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from course_utils.exercises.judging import exercise, same, truth

EQUAL, RAGGED, MEAN = (4, 4, 4, 4), (7, 2, 4, 1), (1 / 4,) * 4
SHARES = [size / sum(RAGGED) for size in RAGGED]  # the correct weights of losses that are means over samples
DROPOUT = nn.Sequential(nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.5))  # with a seed alone one draws other masks
BIAS, ROOT = "a loop that counts one bias twice", "a root of a mean"
CASES = (  # the bug of a test that is wrong on it, what it is, weights of losses, samples, a layer, the loss's factor
    ("misses-batchnorm", "a model with BatchNorm in training mode", MEAN, EQUAL, nn.BatchNorm1d(5), 1),
    ("misses-wrong-loops", "a loop that divides unequal micro-batches by N", MEAN, RAGGED, nn.Tanh(), 1),
    ("misses-wrong-loops", "a loop that turns the gradient's sign around", (-1 / 4,) * 4, EQUAL, nn.Tanh(), 1),
    ("misses-wrong-loops", BIAS, MEAN, EQUAL, nn.Tanh(), 1),
    ("misses-wrong-losses", ROOT, MEAN, EQUAL, nn.Tanh(), 1),
    ("misses-small-errors", "shares rounded to 8 digits", [round(w, 8) for w in SHARES], RAGGED, nn.Tanh(), 1),
    ("misses-tiny-gradients", "a tiny loss and a loop that does not divide", (1,) * 4, EQUAL, nn.Tanh(), 1e-13),
    ("accuses-rounding", "equal micro-batches, divided by N", MEAN, EQUAL, nn.Tanh(), 1),
    ("accuses-rounding", "unequal micro-batches and a huge loss", SHARES, RAGGED, nn.Tanh(), 1e9),
    ("accuses-dropout", "a model with dropout inside another layer", MEAN, EQUAL, DROPOUT, 1),
    ("accuses-frozen", "a model with a frozen BatchNorm", MEAN, EQUAL, nn.BatchNorm1d(5).eval(), 1),
)
HINT = "Compare all entries, relative to their size. What was in `.grad` before? Which layers draw, or changed mode?"


@exercise("your test finds all 7 that are not exact, and passes all 4 that are.")
def is_exact(answer):
    for bug, what, weights, sizes, layer, factor in CASES:
        torch.default_generator.manual_seed(3)
        model = nn.Sequential(nn.Linear(3, 5), deepcopy(layer), nn.Tanh(), nn.Linear(5, 4)).double()
        x, y = torch.randn(sum(sizes), 3), torch.randint(4, (sum(sizes),))

        def loss_fn(model, batch, factor=factor, power=0.5 if what == ROOT else 1.0):
            return factor * cross_entropy(model(batch[0]), batch[1]) ** power

        def accumulate(model, window, loss_fn, weights=weights, of_bias=2 if what == BIAS else 1):
            for batch, weight in zip(window, weights, strict=True):
                (loss_fn(model, batch) * weight).backward()
            model[-1].bias.grad *= of_bias

        window = list(zip(x.split(sizes), y.split(sizes), strict=True))
        said = truth(answer(model, window, loss_fn, accumulate))
        same(what, said, bug.startswith("accuses"), bug, HINT)
