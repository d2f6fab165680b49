"""What hooks on one weight are given, and what is in its `.grad` when they run."""

from collections.abc import Mapping

from torch import Tensor
from torch.optim import Optimizer


class HookLog:
    """Notes each call of a tensor hook and a post-accumulate hook on a weight, and of a step hook on its optimizer.

    Args:
        weight: The weight, a leaf.
        optimizer: Its optimizer, for the step hook; without one there is none.

    Attributes:
        pieces: What the tensor hook was given.
        before: What was in `.grad` when the tensor hook ran; None where nothing was.
        sums: What was in `.grad` when the post-accumulate hook ran.
        steps: What was in `.grad` when the step hook ran; None where nothing was.

    Example:
        >>> import torch
        >>> w = torch.nn.Parameter(torch.tensor(0.0))
        >>> log = HookLog(w)
        >>> for slope in (1.0, 2.0):
        ...     (slope * w).backward()
        >>> print(log.pieces, log.before, log.sums)
        [1.0, 2.0] [None, 1.0] [1.0, 3.0]
    """

    def __init__(self, weight: Tensor, optimizer: Optimizer | None = None):
        self._weight = weight
        self.clear()
        weight.register_hook(self._on_piece)
        weight.register_post_accumulate_grad_hook(self._on_sum)
        if optimizer:
            optimizer.register_step_pre_hook(self._on_step)

    def clear(self) -> None:
        """Forgets all calls so far."""
        self.pieces, self.before, self.sums, self.steps = [], [], [], []
        self._norms: dict[str, dict[int, float]] = {"tensor hook": {}, "post-accumulate hook": {}, "step hook": {}}

    def norms(self) -> Mapping[str, Mapping[int, float]]:
        """The norm of what each kind of hook saw, by the number of the piece that had arrived last, from 1."""
        return self._norms

    def _on_piece(self, piece: Tensor) -> None:
        self.before.append(_value(self._weight.grad))
        self._note(self.pieces, "tensor hook", piece)

    def _on_sum(self, weight: Tensor) -> None:
        self._note(self.sums, "post-accumulate hook", weight.grad)

    def _on_step(self, *_) -> None:
        self._note(self.steps, "step hook", self._weight.grad)

    def _note(self, calls: list, name: str, gradient: Tensor | None) -> None:
        calls.append(_value(gradient))
        if gradient is not None:
            self._norms[name][len(self.pieces)] = gradient.norm().item()


def _value(gradient: Tensor | None) -> float | list | None:
    return None if gradient is None else gradient.tolist()
