"""The memory that a loop keeps for its backward passes."""

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


class SavedBytes:
    """Bytes that autograd keeps for backward: `now`, and the `peak` since the start."""

    def __init__(self, limit: float = inf) -> None:
        self.now = self.peak = 0
        self._limit = limit
        self._users: Counter[tuple[int, int]] = Counter()  # of a piece of memory: (address, bytes)
        self._grown = lambda: None  # called when more is held

    def _hold(self, piece: tuple[int, int]) -> None:
        if not self._users[piece] and self.now + piece[1] > self._limit:
            raise torch.OutOfMemoryError(
                f"the simulated device holds {self._limit:,} bytes for backward; {self.now:,} are in use, and "
                f"{piece[1]:,} more don't fit"
            )
        self._users[piece] += 1
        if self._users[piece] == 1:
            self.now += piece[1]
            self.peak = max(self.peak, self.now)
            self._grown()

    def _release(self, piece: tuple[int, int]) -> None:
        self._users[piece] -= 1
        if not self._users[piece]:
            self.now -= piece[1]


@contextmanager
def saved_bytes(model: nn.Module, limit: float = inf) -> Iterator[SavedBytes]:
    """Counts the activations: the bytes that forward passes save for backward in the block.

    Memory that several operations save is counted once, and freed by `backward()` or with the
    graph. The counts can still be read after the block.

    Args:
        model: The model whose parameters and buffers are not counted: they exist anyway.
        limit: The bytes that fit: a simulated device with little memory.

    Raises:
        torch.OutOfMemoryError: From the forward pass, if it would save more than fits.
        RuntimeError: From `backward()`, as without this block, if what it needs was modified in
            place.

    Example:
        >>> import torch
        >>> model = nn.Linear(64, 10)
        >>> with saved_bytes(model) as saved:
        ...     loss = model(torch.zeros(8, 64)).sum()
        >>> saved.peak  # the input: 8 x 64 numbers of 4 bytes
        2048
    """
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    saved = SavedBytes(limit)

    def pack(tensor: Tensor) -> tuple[Tensor, int]:
        held = tensor.detach()  # or an operation that saves its result is never freed
        if tensor.untyped_storage().data_ptr() not in own:
            # A view counts for what it shows, not for the whole tensor behind it.
            piece = (tensor.data_ptr(), tensor.nbytes)
            saved._hold(piece)
            weakref.finalize(held, saved._release, piece).atexit = False
        return held, tensor._version

    def unpack(packed: tuple[Tensor, int]) -> Tensor:
        """The tensor, after the comparison of versions that autograd omits under hooks."""
        held, version = packed
        if held._version != version:
            which = f"of shape {tuple(held.shape)} that the gradient needs"
            raise RuntimeError(f"a tensor {which} has been modified by an in-place operation")
        return held

    with saved_tensors_hooks(pack, unpack):
        yield saved
