"""A few numbers of parameters and their gradients: a write through `.data` leaves no other mark on a tensor.

They are taken where the gradient is largest: an update moves them along the gradient or against it.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradaudit.observe.gradients import local

_NUMBERS = 8  # of each parameter, at most
_SAME = 0.99  # cosine of two directions that differ by rounding
REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Sample(NamedTuple):
    """Some numbers of a parameter, and of its gradient at the same places."""

    places: Tensor
    values: Tensor
    gradient: Tensor
    size: int  # of the parameter
    memory: tuple[int, int]  # where it lay, and its version: an update may leave all numbers as they are

    def move(self, p: Tensor) -> Tensor | None:
        """How far the parameter has moved since; None if nothing was written, or if nobody knows."""
        weights = local(p)
        if not self.gradient.any() or weights.numel() != self.size:
            return None
        now, before = _take(weights, self.places).double(), self.values.double()  # its type may be another by now
        unwritten = _memory(weights) == self.memory and torch.allclose(now, before, rtol=0, atol=0, equal_nan=True)
        return None if unwritten else now - before

    def differs(self, grad: Tensor | None) -> bool:
        """Does a gradient hold other numbers now?"""
        grad = local(grad)
        if grad is None or grad.is_sparse or grad.numel() != self.size or not _can_be_read(grad):
            return False
        now, before = _take(grad, self.places).double(), self.gradient.double()
        return not torch.allclose(now, before, rtol=1e-6, atol=0, equal_nan=True)

    def ratio(self, grad: Tensor | None) -> float | None:
        """What a gradient was multiplied by since; None if that isn't one number."""
        grad, before = local(grad), self.gradient.double()
        if grad is None or grad.is_sparse or grad.numel() != self.size or not _can_be_read(grad) or not before.any():
            return None
        ratios = (_take(grad, self.places).double() / before)[before != 0]
        return float(ratios[0]) if torch.allclose(ratios, ratios[0], rtol=1e-3, atol=0) else None

    def given_to(self, others: Iterable[Tensor]) -> bool:
        """Is this gradient, or a multiple of it, also the gradient of one of the others?"""
        gradients = (local(other.grad) for other in others)
        alike = [each for each in gradients if each is not None and each.numel() == self.size and _can_be_read(each)]
        taken = [_take(each, self.places).double() for each in alike]
        return any(torch.cosine_similarity(self.gradient.double(), each, dim=0) > _SAME for each in taken)


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


def _memory(weights: Tensor) -> tuple[int, int]:
    return weights.data_ptr(), weights._version
