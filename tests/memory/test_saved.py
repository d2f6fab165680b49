"""saved_bytes counts what forward passes save for backward, to the byte."""

import pytest
import torch
from torch import nn

from course_utils import mlp, saved_bytes

BYTES = 4  # of a float32


def test_backward_frees_what_was_kept():
    model = mlp(6, 5, 4)
    with saved_bytes(model) as saved:
        loss = model(torch.ones(3, 6)).sum()
        assert saved.now == saved.peak == 3 * (6 + 5) * BYTES
        loss.backward()
        assert saved.now == 0
    assert saved.peak == 3 * (6 + 5) * BYTES


@pytest.mark.parametrize("layer", [nn.Tanh(), nn.Sigmoid(), nn.Softmax(dim=-1), nn.ReLU()])
def test_a_graph_that_is_dropped_without_a_backward_frees_what_was_kept(layer):
    model = nn.Sequential(nn.Linear(6, 5), layer)  # an operation that keeps its own result
    with saved_bytes(model) as saved:
        for _ in range(4):
            model(torch.ones(3, 6)).sum()
            assert saved.now == 0
    assert saved.peak == 3 * (6 + 5) * BYTES


def test_what_two_operations_save_is_counted_once_and_a_view_for_what_it_shows():
    x, rows = torch.ones(10, requires_grad=True), torch.ones(10, 10, requires_grad=True)
    with saved_bytes(nn.Identity()) as saved:
        kept = [x.pow(2), x.pow(3), x * x]
        assert saved.now == 10 * BYTES
        kept.append(rows[0].pow(2))
    assert saved.now == 2 * 10 * BYTES


def test_a_limit_is_a_device_on_which_more_does_not_fit_until_something_is_freed():
    model = nn.Linear(64, 10)
    row = 64 * BYTES
    with saved_bytes(model, limit=2 * row) as saved:
        model(torch.zeros(2, 64)).sum().backward()
        with pytest.raises(torch.OutOfMemoryError, match=f"holds 512 bytes .* 0 are in use, and {3 * row} more"):
            model(torch.zeros(3, 64))
        kept = model(torch.zeros(1, 64)).sum()
        with pytest.raises(torch.OutOfMemoryError, match=f"{row} are in use"):
            model(torch.zeros(2, 64))
        kept.backward()
        model(torch.zeros(2, 64)).sum().backward()
    assert (saved.now, saved.peak) == (0, 2 * row)


def test_gradients_are_the_same_with_and_without_counting():
    def gradients():
        x = torch.linspace(-1, 1, 6, requires_grad=True)
        (slope,) = torch.autograd.grad(x.tanh().exp().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.pow(2).sum(), x)[0]

    with saved_bytes(nn.Identity()):
        counted = gradients()
    assert torch.equal(counted, gradients())


@pytest.mark.parametrize("changes_its_input", [True, False])
def test_what_is_modified_in_place_before_backward_is_an_error_as_without_counting(changes_its_input):
    def changed_in_between():
        x = torch.linspace(-1, 1, 8, requires_grad=True) + 0
        y = x.exp() if changes_its_input else x.sigmoid()
        loss = (x * y).sum()
        (x if changes_its_input else y).mul_(2)
        loss.backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed_in_between()
    with (
        saved_bytes(nn.Identity()),
        pytest.raises(RuntimeError, match=r"of shape \(8,\) .* by an in-place"),
    ):
        changed_in_between()
