"""What the noise of a gradient is measured from: the gradient of each sample, or squared norms of two batch sizes."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def sample_gradients(model: nn.Module, inputs: Tensor, targets: Tensor, loss: Callable) -> Tensor:
    """The gradient of each sample's own loss, all at once by `torch.func.vmap`.

    Args:
        model: Any model that treats each sample by itself; not one with BatchNorm in training mode or dropout.
        inputs: A tensor whose first dimension counts the samples.
        targets: The same for what the loss compares with.
        loss: `loss(output, target)` returns the loss of a sample, without a batch dimension.

    Returns:
        A row per sample, a column per weight, in the order of `model.parameters()`.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> rows = sample_gradients(model, torch.tensor([[1.0], [2.0]]), torch.zeros(2), lambda out, y: (out - y).sum())
        >>> rows.tolist()
        [[1.0], [2.0]]
    """
    from torch.func import functional_call, vmap

    copies = {name: p.detach().expand(len(inputs), *p.shape).requires_grad_() for name, p in model.named_parameters()}

    def loss_of_one(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(model, weights, (x,)), y)

    # Every sample has weights of its own, so the gradient of the sum holds a row per sample. (`torch.func.grad` would
    # do as well, and would import the compiler on its first call.)
    rows = torch.autograd.grad(
        vmap(loss_of_one)(copies, inputs, targets).sum(), tuple(copies.values()), materialize_grads=True
    )
    return torch.cat([gradients.flatten(1) for gradients in rows], dim=1)


def watch_norms(model: nn.Module, optimizer: Optimizer, n: int) -> tuple[list[Tensor], list[Tensor]]:
    """Reads the squared norms of micro-batches and of windows around a loop that stays as it is.

    A hook on each parameter sees the gradient of each micro-batch on its way into `.grad`; a hook before each optimizer
    step sees the window. The loop must divide the loss of every micro-batch by `n`, and must not clip or unscale
    between the two. A window that ends without a call of `optimizer.step()` is added to the next one. The hooks stay.
    Norms are summed in the gradient's dtype: float32 or wider, since two nearly equal ones are subtracted later.

    Args:
        model: The model; each of its parameters gets one gradient per backward pass.
        optimizer: The optimizer that steps once per window.
        n: Micro-batches per window.

    Returns:
        Two lists that fill during training, with a tensor per window and in it an entry per parameter: the squared
        norms of the micro-batches' gradients, averaged over the window, and of the window's gradient. Parameters that
        are frozen now are left out.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        >>> small, large = watch_norms(model, optimizer, n=2)
        >>> for x in (1.0, 3.0):
        ...     (model(torch.tensor([x])).sum() / 2).backward()
        >>> optimizer.step()
        >>> [norms.tolist() for norms in small + large]
        [[5.0], [4.0]]
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    passing = [p.new_zeros(()) for p in parameters]
    small, large = [], []

    def hook(place: int) -> Callable[[Tensor], None]:
        def read(gradient: Tensor) -> None:
            passing[place] = passing[place] + (n * gradient.detach()).square().sum() / n

        return read

    def read_window(*_: object) -> None:
        small.append(torch.stack(passing))
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in parameters]
        large.append(torch.stack([gradient.square().sum() for gradient in gradients]))
        passing[:] = [p.new_zeros(()) for p in parameters]

    for place, p in enumerate(parameters):
        p.register_hook(hook(place))
    optimizer.register_step_pre_hook(read_window)
    return small, large


def ratio_interval(
    above: Tensor, below: Tensor, generator: torch.Generator, share: float = 0.9, times: int = 200
) -> tuple[float, float]:
    """A bootstrap interval of `above.mean() / below.mean()`.

    As many pairs are drawn again from the given ones, with replacement, `times` times. This takes the pairs to be
    independent draws of one thing.

    Args:
        above: A value per window.
        below: The same for what divides it.
        generator: Draws the pairs.
        share: Which part of the ratios lies in the interval.
        times: How often pairs are drawn.

    Returns:
        The ends of the interval.

    Example:
        >>> ratio_interval(torch.tensor([2.0, 4.0]), torch.tensor([1.0, 2.0]), torch.Generator())
        (2.0, 2.0)
    """
    again = torch.randint(len(above), (times, len(above)), generator=generator)
    ratios = above[again].mean(1) / below[again].mean(1)
    ends = torch.tensor([(1 - share) / 2, (1 + share) / 2], dtype=ratios.dtype)
    low, high = torch.quantile(ratios, ends).tolist()
    return low, high
