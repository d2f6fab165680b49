"""Where FSDP keeps gradients. Not always in a parameter's `.grad`: the ranks may not have reduced them yet.

FSDP2 replaces each parameter by an unsharded copy while a module runs. After `set_requires_gradient_sync(False)` a
backward pass leaves its gradients on those copies, and the `.grad` that the optimizer reads stays as it was.
"""

import sys
from collections.abc import Callable
from typing import NamedTuple
from weakref import ref

from torch import Tensor

_KEEPERS = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


class Shard(NamedTuple):
    """How to read a parameter's gradients: `read(p)` returns them, and whether they still wait for the other ranks."""

    read: Callable[[Tensor], tuple[list[Tensor], bool]]
    ranks: int


def is_sharded(p: Tensor) -> bool:
    """Whether it is a DTensor.

    >>> is_sharded(Tensor([1.0]))
    False
    """
    return hasattr(p, "_local_tensor")


def keepers() -> list[type]:
    """The class of the objects that know what is kept where; none if this process has not loaded FSDP2."""
    return [sys.modules[_KEEPERS].FSDPParamGroup] if _KEEPERS in sys.modules else []


def shards(found: list) -> dict[int, Shard]:
    """For each parameter that FSDP keeps, by its id, how to read it.

    Args:
        found: The living objects of the classes of `keepers()`.
    """
    read = {}
    for group in found:
        ranks = group.mesh_info.mesh.size()
        read |= {id(one.sharded_param): Shard(_reader(ref(group), ref(one)), ranks) for one in group.fsdp_params}
    return read


def own_parameters(found: list) -> set[int]:
    """The ids of FSDP's own parameters, which no optimizer should hold.

    Args:
        found: As for `shards()`.
    """
    return {id(getattr(one, "_unsharded_param", None)) for group in found for one in group.fsdp_params}


def _reader(group: ref, parameter: ref) -> Callable:
    def read(p: Tensor) -> tuple[list[Tensor], bool]:
        own, unsharded = parameter(), getattr(parameter(), "_unsharded_param", None)
        kept = (
            getattr(unsharded, "grad", None),
            getattr(own, "unsharded_accumulated_grad", None),  # in the type in which the ranks will add it up
            getattr(group(), "_partial_reduce_output", None),  # of HSDP, after set_requires_all_reduce(False)
        )
        waiting = [gradient for gradient in kept if gradient is not None]
        return waiting if p.grad is None else [p.grad, *waiting], bool(waiting)

    return read
