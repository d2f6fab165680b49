"""The few small models that the notebooks train. Needs torch alone."""

from itertools import pairwise

import torch
from torch import Tensor, nn


def mlp(*sizes: int) -> nn.Sequential:
    """A multi-layer perceptron with tanh between its linear layers, in the default dtype.

    Tanh rather than ReLU: it has no kink, so that finite differences and the gradient agree everywhere.

    **Arguments:** `sizes`: the width of the input, of each hidden layer and of the output, two or more.

    >>> mlp(64, 32, 10)(torch.zeros(5, 64)).shape
    torch.Size([5, 10])
    """
    if len(sizes) < 2:
        raise ValueError(f"mlp needs at least the input's and the output's width, got {sizes}")
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


class Tally(nn.Module):
    """A model whose gradient can be read: after a backward, `tally.weight.grad[i]` says how much item `i` counts.

    Item `i` is the integer `i`, and its loss is `weight[i]`, so the derivative of any weighted mean of losses with
    respect to `weight[i]` is just the weight of item `i` in it. Run a training loop on it and read from `.grad`,
    before each step, what that loop makes of its data. The weights start at zero.

    >>> tally = Tally(4)
    >>> tally(torch.tensor([0, 1])).mean().backward()
    >>> tally.weight.grad.tolist()
    [0.5, 0.5, 0.0, 0.0]
    """

    def __init__(self, items: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(items))

    def forward(self, batch: Tensor) -> Tensor:
        """The loss of each item of `batch`, a vector of integers: one number per item."""
        return self.weight[batch]
