"""saved_bytes counts what forward passes save for backward, to the byte."""

import pytest
import torch
from torch import nn

from course_utils import mlp, saved_bytes

BYTES = 4  # of a float32


def test_a_linear_layer_keeps_its_input_and_not_its_parameters():
    model = nn.Linear(64, 10)
    with saved_bytes(model) as saved:
        model(torch.zeros(8, 64)).sum()
    assert saved.peak == 8 * 64 * BYTES


def test_buffers_of_the_model_are_left_out():
    model = nn.Module()
    model.register_buffer("scale", torch.ones(100))
    x = torch.ones(100, requires_grad=True)
    with saved_bytes(model) as saved:
        (x * model.scale).sum()
    assert saved.peak == 0


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


def test_what_two_operations_save_is_counted_once():
    x = torch.ones(10, requires_grad=True)
    with saved_bytes(nn.Identity()) as saved:
        kept = [x.pow(2), x.pow(3), x * x]
    assert saved.now == 10 * BYTES
    assert len(kept) == 3


def test_a_view_counts_for_what_it_shows():
    x = torch.ones(10, 10, requires_grad=True)
    with saved_bytes(nn.Identity()) as saved:
        kept = x[0].pow(2)
    assert saved.now == kept.numel() * BYTES


def test_one_backward_per_micro_batch_keeps_one_micro_batch_and_a_sum_of_losses_keeps_all():
    model = mlp(6, 5, 4)
    batches = [torch.randn(3, 6) for _ in range(4)]
    with saved_bytes(model) as one_by_one:
        for batch in batches:
            model(batch).sum().backward()
    with saved_bytes(model) as together:
        sum(model(batch).sum() for batch in batches).backward()
    assert one_by_one.peak == 3 * (6 + 5) * BYTES
    assert together.peak == 4 * one_by_one.peak


def test_nothing_is_saved_without_a_graph():
    model = mlp(6, 5, 4)
    with saved_bytes(model) as saved, torch.no_grad():
        model(torch.ones(3, 6))
    assert saved.peak == 0


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_counting_ends_with_the_block_however_it_ends(error):
    model = mlp(6, 5, 4)
    try:
        with saved_bytes(model) as saved:
            if error:
                raise error
    except (RuntimeError, KeyboardInterrupt):
        pass
    loss = model(torch.ones(3, 6)).sum()
    assert (saved.now, saved.peak) == (0, 0)
    assert loss.requires_grad


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
        pytest.raises(RuntimeError, match=r"in-place .*float32 of shape \(8,\) is at ver"),
    ):
        changed_in_between()


def test_operations_in_place_that_are_allowed_stay_so():
    def gradient():
        x = torch.linspace(-1, 1, 8, requires_grad=True)
        ((x + 0).sigmoid_() + 0).add_(1).relu_().sum().backward()
        return x.grad

    with saved_bytes(nn.Identity()):
        counted = gradient()
    assert torch.equal(counted, gradient())
