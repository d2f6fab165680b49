"""In which number format each tensor is that a training step holds for a weight."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer


@contextmanager
def formats_of(weight: nn.Parameter, optimizer: Optimizer) -> Iterator[dict[str, str]]:
    """Reads the formats of a weight's tensors while a window runs, its step included; empty until the block ends.

    The rows are the weight; what of its shape, or transposed, autograd saved for the backward pass; `.grad`; the
    attribute `main_grad`, a buffer that some loops add gradients to; the tensor of this shape that the optimizer steps;
    the optimizer's state for it; and how many bytes all of these hold per number when the block ends, without what was
    saved. "-" stands for a tensor that is not there.

    Args:
        weight: A parameter of the model whose shape no other tensor has, such as a layer's matrix.
        optimizer: It holds the parameter itself, or a copy of it.

    Example:
        >>> import torch
        >>> layer = nn.Linear(3, 2).bfloat16()
        >>> optimizer = torch.optim.Adam(layer.parameters())
        >>> with formats_of(layer.weight, optimizer) as formats:
        ...     layer(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
        ...     optimizer.step()
        >>> formats[".grad"], formats["main_grad"], formats["optimizer's state"], formats["bytes per weight"]
        ('bfloat16', '-', 'bfloat16', '8')
    """
    formats: dict[str, str] = {}
    saved: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.shape in (weight.shape, weight.shape[::-1]):
            saved.append(tensor)
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        yield formats
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    stepped = [p for p in parameters if p is weight] or [p for p in parameters if p.shape == weight.shape]
    state = [
        held
        for p in stepped
        for held in optimizer.state[p].values()
        if isinstance(held, Tensor) and held.shape == weight.shape
    ]
    rows = {
        "weight": [weight],
        "saved for backward": saved,
        ".grad": [weight.grad],
        "main_grad": [getattr(weight, "main_grad", None)],
        "is stepped": stepped,
        "optimizer's state": state,
    }
    held = {id(t): t for name in rows if name != "saved for backward" for t in rows[name] if t is not None}
    for name, tensors in rows.items():
        formats[name] = " ".join(sorted({str(t.dtype)[6:] for t in tensors if t is not None})) or "-"
    formats["bytes per weight"] = str(sum(t.element_size() for t in held.values()))
