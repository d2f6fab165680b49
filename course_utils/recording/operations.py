"""How much PyTorch computes, in numbers that are the same on every machine."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils._python_dispatch import TorchDispatchMode


class Work:
    """`flops`, of matrix products and convolutions alone, and `calls` of all operations that compute something."""

    flops = calls = 0


@contextmanager
def count_work() -> Iterator[Work]:
    """Counts what PyTorch computes while the block runs, backward passes included.

    A matrix product of (a, b) and (b, c) is 2abc floating-point operations, a convolution twice its multiplications;
    other operations count as calls alone. Of fused operations on a CPU, attention's products are counted since PyTorch
    2.15 (`torch.utils.flop_counter`), an LSTM's are not.
    Views compute nothing and are left out. The counts are set when the block ends.

    Example:
        >>> import torch
        >>> with count_work() as work:
        ...     y = torch.ones(3, 4).mm(torch.ones(4, 5).t().t()).exp()
        >>> work.flops, work.calls               # two tensors are filled; one product; one exp
        (120, 4)
    """
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    work = Work()
    with FlopCounterMode(display=False) as flops, _Counting() as counting:
        yield work
    work.flops, work.calls = flops.get_total_flops(), counting.computing


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.computing = 0  # calls of operations that are more than a view

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.computing += not operation.is_view
        return operation(*args, **(kwargs or {}))
