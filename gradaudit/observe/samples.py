"""A few numbers of parameters and their gradients: a write through `.data` leaves no other mark on a tensor.

They are taken where the gradient is largest: an update moves them along the gradient or against it.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradaudit.observe.gradients import local

_NUMBERS = 8  # of each parameter, at most
REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Sample(NamedTuple):
    """Some numbers of a parameter, and of its gradient at the same places."""

    places: Tensor
    values: Tensor
    gradient: Tensor
    size: int  # of the parameter
    memory: tuple[int, int]  # where it lay, and its version: an update may leave all numbers as they are

    def has_moved(self, p: Tensor) -> bool:
        """Whether the parameter was written to since, as far as anyone knows."""
        now = self._now(p)
        if now is None or not self.gradient.any():
            return False
        return _memory(local(p)) != self.memory or not _same(now, self.values, 0.0)

    def signs(self, p: Tensor) -> Tensor:
        """For each number whether it has moved along its gradient, 1, or against it, -1."""
        return torch.nan_to_num(((self._now(p) - self.values.double()) * self.gradient.double()).sign())

    def differs(self, grad: Tensor | None) -> bool:
        """Whether a gradient holds other numbers now."""
        now = self._now(grad)
        return now is not None and not _same(now, self.gradient, 1e-6)

    def ratio(self, grad: Tensor | None) -> float | None:
        """What a gradient was multiplied by since; None if that isn't one number."""
        now, before = self._now(grad), self.gradient.double()
        if now is None or not before.any():
            return None
        ratios = (now / before)[before != 0]
        return float(ratios[0]) if torch.allclose(ratios, ratios[0], rtol=1e-3, atol=0) else None

    def _now(self, tensor: Tensor | None) -> Tensor | None:
        """The numbers of the parameter, or of its gradient, as they are now; its type may be another."""
        tensor = local(tensor)
        if tensor is None or tensor.is_sparse or tensor.numel() != self.size or not _can_be_read(tensor):
            return None
        return _take(tensor, self.places).double()


def sample(p: Tensor, last: Sample | None = None) -> Sample | None:
    """A sample at the places of the last one, if there still is a gradient there. None where there is no gradient."""
    weights, grad = local(p), local(p.grad)
    size = weights.numel()
    if grad is None or not size or grad.is_sparse or not _can_be_read(weights, grad) or grad.numel() != size:
        return None
    if weights.dtype not in REAL:
        return None
    if last is None or last.size != size or not _take(grad, last.places).any():
        places = grad.detach().abs().flatten().topk(min(_NUMBERS, size)).indices
    else:
        places = last.places
    return Sample(places, _take(weights, places), _take(grad, places), size, _memory(weights))


def _can_be_read(*tensors: Tensor) -> bool:
    """Other classes of tensors may not do what is needed here."""
    return {type(tensor) for tensor in tensors} <= {Tensor, nn.Parameter} and not any(t.is_meta for t in tensors)


def _take(tensor: Tensor, places: Tensor) -> Tensor:
    return tensor.detach().flatten()[places.to(tensor.device)].to(places.device)


def _same(now: Tensor, before: Tensor, within: float) -> bool:
    return torch.allclose(now, before.double(), rtol=within, atol=0, equal_nan=True)


def _memory(weights: Tensor) -> tuple[int, int]:
    return weights.data_ptr(), weights._version
