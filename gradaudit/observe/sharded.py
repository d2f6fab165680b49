"""Where FSDP keeps gradients. Not always in a parameter's `.grad`: the ranks may not have reduced them yet.

FSDP2 replaces each parameter by an unsharded copy while a module runs. After `set_requires_gradient_sync(False)` a
backward pass leaves its gradients on those copies, and the `.grad` that the optimizer reads stays as it was.
"""

import sys
from typing import Any
from weakref import ref

from torch import Tensor

_KEEPERS = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


class Shard:
    """How to read the gradients of a parameter, `one` of those of a `group`.

    Attributes:
        ranks: How many hold a shard.
    """

    def __init__(self, group: Any, one: Any) -> None:
        self.group, self.one, self.ranks = ref(group), ref(one), group.mesh_info.mesh.size()

    def read(self, p: Tensor) -> tuple[list[Tensor], bool]:
        """Its gradients, and whether they still wait for the other ranks."""
        own, unsharded = self.one(), getattr(self.one(), "_unsharded_param", None)
        kept = (
            getattr(unsharded, "grad", None),
            getattr(own, "unsharded_accumulated_grad", None),  # in the type in which the ranks will add it up
            getattr(self.group(), "_partial_reduce_output", None),  # of HSDP, after set_requires_all_reduce(False)
        )
        waiting = [gradient for gradient in kept if gradient is not None]
        return waiting if p.grad is None else [p.grad, *waiting], bool(waiting)


def keepers() -> list[type]:
    """The class of the objects that know what is kept where; none if this process has not loaded FSDP2."""
    return [sys.modules[_KEEPERS].FSDPParamGroup] if _KEEPERS in sys.modules else []


def shards(found: list) -> dict[int, Shard]:
    """For each parameter that FSDP keeps, by its id, how to read it.

    Args:
        found: The living objects of the classes of `keepers()`.
    """
    return {id(one.sharded_param): Shard(group, one) for group in found for one in group.fsdp_params}


def own_parameters(found: list) -> set[int]:
    """The ids of FSDP's own parameters, which no optimizer should hold.

    Args:
        found: As for `shards()`.
    """
    return {id(getattr(one, "_unsharded_param", None)) for group in found for one in group.fsdp_params}
