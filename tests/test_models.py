"""The models: a tally whose gradient can be read, and a small perceptron."""

import pytest
import torch
from torch import nn

from course_utils import Tally, mlp


def test_the_gradient_of_a_tally_says_how_much_each_item_counts():
    tally = Tally(5)
    tally(torch.tensor([0, 1])).mean().backward()
    (tally(torch.tensor([3, 1, 1, 3])).mean() * 2).backward()
    assert tally.weight.grad.tolist() == [0.5, 1.5, 0, 1, 0]


def test_a_tally_gives_one_loss_per_item_and_starts_at_zero():
    assert Tally(4)(torch.tensor([2, 3, 3])).tolist() == [0, 0, 0]


def test_an_mlp_has_tanh_between_its_linear_layers_and_none_at_its_ends():
    layers = list(mlp(5, 4, 3, 2))
    assert [type(layer) for layer in layers] == [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear]
    assert [(layer.in_features, layer.out_features) for layer in layers[::2]] == [(5, 4), (4, 3), (3, 2)]
    assert [type(layer) for layer in mlp(5, 2)] == [nn.Linear]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_models_come_in_the_default_dtype(dtype):
    torch.set_default_dtype(dtype)
    assert {p.dtype for model in (mlp(3, 2), Tally(3)) for p in model.parameters()} == {dtype}


@pytest.mark.parametrize("sizes", [(), (3,)])
def test_an_mlp_of_fewer_than_two_widths_is_an_error(sizes):
    with pytest.raises(ValueError, match="at least the input's and the output's width"):
        mlp(*sizes)
