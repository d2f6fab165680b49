"""The bytes of gradients and activations that a training loop holds, event by event."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from course_utils.memory.saved import saved_bytes


class HeldBytes:
    """Bytes at each event of a loop, as lists of equal length that grow while it runs.

    `gradients` are in the `.grad` of all parameters; `arriving` ones are computed and not yet added
    into `.grad`; `activations` are saved for backward.
    """

    def __init__(self) -> None:
        self.gradients, self.arriving, self.activations = [], [], []

    def most(self, *parts: str) -> int:
        """The most bytes at one event, of these parts together; of all three if none is named."""
        lists = [vars(self)[part] for part in parts or vars(self)]
        return max(map(sum, zip(*lists, strict=True)))


@contextmanager
def held_bytes(model: nn.Module) -> Iterator[HeldBytes]:
    """Notes the bytes held, whenever a forward pass saves more or a gradient arrives.

    Weights, optimizer state and the temporary memory of operations are not counted.

    Args:
        model: The model whose gradients are counted.

    Example:
        >>> model = nn.Linear(64, 10, bias=False)
        >>> with held_bytes(model) as held:
        ...     for _ in range(2):
        ...         model(torch.zeros(8, 64)).sum().backward()
        >>> held.activations  # start, forward, two moments of backward, forward, ...
        [0, 2048, 0, 0, 2048, 0, 0, 0]
        >>> held.gradients
        [0, 0, 0, 2560, 2560, 2560, 2560, 2560]
        >>> held.arriving  # the second gradient is a tensor of its own until it is added
        [0, 0, 2560, 0, 0, 2560, 0, 0]
    """
    held = HeldBytes()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def note(arriving: Tensor | None = None) -> None:
        held.gradients.append(_size(p.grad for p in parameters if p.grad is not None))
        held.arriving.append(0 if arriving is None else _size([arriving]))
        held.activations.append(saved.now)

    with saved_bytes(model) as saved:
        saved._grown = note
        handles = [p.register_hook(note) for p in parameters]
        handles += [p.register_post_accumulate_grad_hook(lambda _: note()) for p in parameters]
        note()
        try:
            yield held
        finally:
            for handle in handles:
                handle.remove()
            note()
            saved._grown = None  # it refers to saved, which refers to it


def resident_bytes(model: nn.Module, optimizer: Optimizer) -> dict[str, int]:
    """The bytes that stay between updates: weights, present gradients, optimizer state.

    Example:
        >>> model = nn.Linear(64, 10, bias=False)
        >>> model(torch.zeros(8, 64)).sum().backward()
        >>> resident_bytes(model, torch.optim.SGD(model.parameters()))
        {'weights': 2560, 'gradients': 2560, 'optimizer state': 0}
    """
    return {
        "weights": _size(model.parameters()),
        "gradients": _size(p.grad for p in model.parameters() if p.grad is not None),
        "optimizer state": _size(filter(torch.is_tensor, tree_leaves(list(optimizer.state.values())))),
    }


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
