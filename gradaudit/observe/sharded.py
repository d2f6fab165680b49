"""Where FSDP keeps gradients. Not always in a parameter's `.grad`: the ranks may not have reduced them yet.

FSDP2 replaces each parameter by an unsharded copy while a module runs. After `set_requires_gradient_sync(False)` a
backward pass leaves its gradients on those copies, and the `.grad` that the optimizer reads stays as it was.
FSDP1 keeps the gradients of many parameters in one flat one, of which each `.grad` is a view that comes and goes.
"""

import sys
from collections.abc import Callable
from typing import NamedTuple
from weakref import ref

from torch import Tensor

_KEEPERS = {  # where the class is whose objects know what is kept where
    "torch.distributed.fsdp._fully_shard._fsdp_param_group": "FSDPParamGroup",
    "torch.distributed.fsdp._flat_param": "FlatParamHandle",
}


class Shard(NamedTuple):
    """How to read a parameter's gradients: `read(p)` returns them, and whether they still wait for the other ranks."""

    read: Callable[[Tensor], tuple[list[Tensor], bool]]
    ranks: int


def is_sharded(p: Tensor) -> bool:
    """Is it a DTensor, or a parameter of FSDP1?

    >>> is_sharded(Tensor([1.0]))
    False
    """
    return hasattr(p, "_local_tensor") or hasattr(p, "_fsdp_flattened")


def keepers() -> list[type]:
    """The classes of the objects to look for; none if this process has not loaded FSDP."""
    return [getattr(sys.modules[name], kind) for name, kind in _KEEPERS.items() if hasattr(sys.modules.get(name), kind)]


def shards(found: list) -> dict[int, Shard]:
    """For each parameter that FSDP keeps, by its id, how to read it.

    Args:
        found: The living objects of the classes of `keepers()`.
    """
    read = {}
    for keeper in found:
        if hasattr(keeper, "fsdp_params"):
            ranks = keeper.mesh_info.mesh.size()
            read |= {id(one.sharded_param): Shard(_fsdp2(ref(keeper), ref(one)), ranks) for one in keeper.fsdp_params}
        else:
            flat, shard = keeper.flat_param, Shard(_fsdp1(ref(keeper)), keeper.world_size)
            read |= {id(p): shard for p in [flat, *(flat._params or [])]}
    return read


def own_parameters(found: list) -> set[int]:
    """The ids of FSDP's own parameters, which no optimizer should hold.

    Args:
        found: As for `shards()`.
    """
    groups = [keeper.fsdp_params for keeper in found if hasattr(keeper, "fsdp_params")]
    copies = {id(getattr(one, "_unsharded_param", None)) for group in groups for one in group}
    return copies | {id(keeper.flat_param) for keeper in found if hasattr(keeper, "flat_param")}


def _fsdp2(group: ref, parameter: ref) -> Callable:
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


def _fsdp1(handle: ref) -> Callable:
    def read(p: Tensor) -> tuple[list[Tensor], bool]:
        flat = getattr(handle(), "flat_param", p)
        gradient = flat.grad
        if gradient is None or (flat._params and all(one.grad is None for one in flat._params)):  # zeroed one by one
            return [], False
        return [gradient], gradient.numel() != flat.numel()

    return read
