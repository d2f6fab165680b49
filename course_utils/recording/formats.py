"""In which number format each tensor is that a training step holds for a weight."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer


@contextmanager
def formats_of(weight: nn.Parameter, optimizer: Optimizer) -> Iterator[dict[str, str]]:
    """Reads the formats of a weight's tensors while a window runs, its step included; empty until the block ends.

    The rows are the weight; what of its shape, or transposed, autograd saved for the backward pass; `.grad`; and the
    optimizer's state for it. "-" stands for a tensor that is not there.

    Args:
        weight: A parameter of the model whose shape no other tensor has, such as a layer's matrix.
        optimizer: The one that steps it.

    Example:
        >>> import torch
        >>> layer = nn.Linear(3, 2).bfloat16()
        >>> optimizer = torch.optim.Adam(layer.parameters())
        >>> with formats_of(layer.weight, optimizer) as formats:
        ...     layer(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
        ...     optimizer.step()
        >>> formats[".grad"], formats["optimizer's state"]
        ('bfloat16', 'bfloat16')
    """
    formats: dict[str, str] = {}
    saved: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.shape in (weight.shape, weight.shape[::-1]):
            saved.append(tensor)
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        yield formats
    state = [t for t in optimizer.state[weight].values() if isinstance(t, Tensor) and t.shape == weight.shape]
    rows = {"weight": [weight], "saved for backward": saved, ".grad": [weight.grad], "optimizer's state": state}
    for name, tensors in rows.items():
        formats[name] = " ".join(sorted({str(t.dtype)[6:] for t in tensors if t is not None})) or "-"
