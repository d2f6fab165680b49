"""Squared norms and single samples' gradients, compared with what plain backward passes give."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from course_utils import digits, mlp, train_epoch
from course_utils.recording.noise import ratio_interval, sample_gradients, watch_norms


def gradient(model, x, y):
    parts = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    return [part.flatten() for part in parts]


def test_each_row_is_the_gradient_of_one_sample():
    images, labels = (part[:3] for part in digits())
    model = mlp(64, 4, 10).double()
    rows = sample_gradients(model, images.double(), labels, F.cross_entropy)
    for row, x, y in zip(rows, images.double(), labels, strict=True):
        assert torch.allclose(row, torch.cat(gradient(model, x, y)), rtol=1e-12)


def test_a_weight_that_a_loss_does_not_reach_has_a_column_of_zeros():
    model = nn.Linear(2, 1)
    model.unused = nn.Parameter(torch.ones(3))
    rows = sample_gradients(model, torch.ones(4, 2), torch.zeros(4), lambda out, y: (out - y).sum())
    assert rows.tolist() == [[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]] * 4  # two weights, the bias, and what is unused


def test_the_norms_are_those_of_the_micro_batches_and_windows_and_the_training_stays_as_it_was():
    images, labels = (part[:24] for part in digits())
    batches = list(zip(images.double().split(4), labels.split(4), strict=True))
    watched = mlp(64, 4, 10).double()
    alone = copy.deepcopy(watched)

    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    parts = [gradient(watched, *batch) for batch in batches[:3]]
    want_small = [sum(part.square().sum() for part in column) / 3 for column in zip(*parts, strict=True)]
    want_large = [(sum(column) / 3).square().sum() for column in zip(*parts, strict=True)]
    optimizer = torch.optim.SGD(watched.parameters(), lr=0.1)
    small, large = watch_norms(watched, optimizer, n=3)
    train_epoch(watched, batches, loss_fn, optimizer, n=3)
    train_epoch(alone, batches, loss_fn, torch.optim.SGD(alone.parameters(), lr=0.1), n=3)

    assert len(small) == len(large) == 2
    assert torch.allclose(small[0], torch.stack(want_small), rtol=1e-12)
    assert torch.allclose(large[0], torch.stack(want_large), rtol=1e-12)
    assert all(torch.equal(*pair) for pair in zip(watched.parameters(), alone.parameters(), strict=True))


def test_the_interval_holds_the_ratio_of_the_means_about_as_often_as_it_promises():
    generator = torch.Generator().manual_seed(0)
    held = 0
    for _ in range(100):
        above, below = torch.randn((2, 100), generator=generator) + torch.tensor([[6.0], [3.0]])
        low, high = ratio_interval(above, below, generator)
        held += low < 2 < high
    assert 82 <= held <= 97
