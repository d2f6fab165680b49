"""How much memory a loop keeps for its backward passes. Needs torch alone."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


class SavedBytes:
    """Bytes that autograd keeps for backward: `now`, and the `peak` since the start. Counted, not sampled."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self._users: dict[tuple, int] = {}

    def _hold(self, memory: tuple) -> None:
        self._users[memory] = self._users.get(memory, 0) + 1
        if self._users[memory] == 1:
            self.now += memory[1]
            self.peak = max(self.peak, self.now)

    def _release(self, memory: tuple) -> None:
        self._users[memory] -= 1
        if not self._users[memory]:
            del self._users[memory]
            self.now -= memory[1]


class _Held:
    """A saved tensor that says when the graph lets go of it."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor


@contextmanager
def saved_bytes(model: nn.Module) -> Iterator[SavedBytes]:
    """Counts the bytes that forward passes save for backward while the block runs: the activations.

    Memory that several operations save is counted once. The parameters and buffers of `model` are left out: they are
    there anyway. What is counted is freed by `backward()` or with the graph.

    **Yields:** a `SavedBytes` with `now` and `peak`, in bytes; it can still be read after the block.

    >>> import torch
    >>> model = nn.Linear(64, 10)
    >>> with saved_bytes(model) as saved:
    ...     loss = model(torch.zeros(8, 64)).sum()
    >>> saved.peak                                  # the input: 8 x 64 numbers of 4 bytes
    2048
    """
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    saved = SavedBytes()

    def pack(tensor: Tensor) -> _Held:
        held = _Held(tensor.detach())  # with its history, an operation that saves its own result would never be freed
        storage = tensor.untyped_storage().data_ptr()
        if storage not in own:
            # A view of a large tensor counts for what it shows, not for all that it could show.
            memory = (tensor.data_ptr(), tensor.numel() * tensor.element_size())
            saved._hold(memory)
            weakref.finalize(held, saved._release, memory).atexit = False
        return held

    with saved_tensors_hooks(pack, lambda held: held.tensor):
        yield saved
