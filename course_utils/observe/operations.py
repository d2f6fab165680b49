"""Which tensor operations PyTorch runs, by name."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils._python_dispatch import TorchDispatchMode


@contextmanager
def count_operations() -> Iterator[Counter[str]]:
    """Counts the tensor operations that run in the block, those of a backward pass on a CPU included.

    A count is a number of calls, and says nothing about how long one takes. A fused or "foreach" operation handles
    many tensors in one call.

    Example:
        >>> import torch
        >>> with count_operations() as counts:
        ...     x = torch.zeros(3).add_(1).add_(1)
        >>> counts["zeros"], counts["add_"]
        (1, 2)
    """
    counts: Counter[str] = Counter()
    with _Counting(counts):
        yield counts


class _Counting(TorchDispatchMode):
    def __init__(self, counts: Counter[str]):
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self._counts[operation.overloadpacket.__name__] += 1
        return operation(*args, **(kwargs or {}))
