"""Does a backward call bring its gradients in the very memory in which `.grad` lies?

`AccumulateGrad` adopts the first gradient that it gets, without a copy. If what made that gradient writes the next one
into the same memory, as a CUDA graph does when it is replayed, then `.grad` is overwritten before anything is added.
"""

from collections.abc import Callable, Iterable
from functools import partial

from torch import Tensor

from gradaudit.history import AuditedCall


def watch_memory(parameters: Iterable[Tensor], call: AuditedCall, probe: Callable) -> None:
    """Counts in `call.overwritten` the parameters whose gradient comes in the memory of their `.grad`.

    Args:
        parameters: Those that may receive gradients. Only the ones that hold a gradient already are looked at.
        call: Receives the count.
        probe: Registers a hook for this backward call, as `Observer.probe` does.
    """

    def compare(p: Tensor, incoming: Tensor) -> None:
        if _address(incoming) is not None and _address(incoming) == _address(p.grad):
            call.overwritten += 1

    for p in [p for p in parameters if p.requires_grad and _address(p.grad) is not None]:
        probe(p.register_hook, partial(compare, p))


def _address(tensor: Tensor | None) -> int | None:
    """Where an ordinary tensor's first number lies; None for sparse, sharded and meta tensors, and empty ones."""
    ordinary = type(tensor) is Tensor and not tensor.is_sparse and not tensor.is_meta and tensor.numel()
    return tensor.data_ptr() if ordinary else None
