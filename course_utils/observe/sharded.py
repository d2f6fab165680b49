"""Where FSDP keeps gradients that the ranks have not exchanged yet: those of a micro-batch without synchronisation.

FSDP2 replaces each parameter by an unsharded copy while a module runs. After `set_requires_gradient_sync(False)` a
backward pass leaves its gradients on those copies, and the `.grad` that the optimizer reads stays as it was.
"""

import sys
from collections.abc import Callable, Iterable
from weakref import ref

from torch import Tensor

_FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


def group_type() -> tuple[type, ...]:
    """The class whose objects know where FSDP2 keeps what; nothing if this process has not loaded FSDP2."""
    kind = getattr(sys.modules.get(_FSDP2), "FSDPParamGroup", None)
    return () if kind is None else (kind,)


def waiting_gradients(groups: Iterable) -> dict[int, Callable[[], list[Tensor]]]:
    """For each sharded parameter, by its id: a function that returns its gradients that wait for the other ranks."""
    return {id(one.sharded_param): _waiting(ref(group), ref(one)) for group in groups for one in group.fsdp_params}


def _waiting(group: ref, parameter: ref) -> Callable[[], list[Tensor]]:
    def waiting() -> list[Tensor]:
        own, unsharded = parameter(), getattr(parameter(), "_unsharded_param", None)
        gradients = (
            getattr(unsharded, "grad", None),
            getattr(own, "unsharded_accumulated_grad", None),  # in the type in which the ranks will add it up
            getattr(group(), "_partial_reduce_output", None),  # of HSDP, without set_requires_all_reduce
        )
        return [gradient for gradient in gradients if gradient is not None]

    return waiting


def unsharded_copies(groups: Iterable) -> set[int]:
    """The ids of the copies. They are parameters that no optimizer should hold."""
    return {id(getattr(one, "_unsharded_param", None)) for group in groups for one in group.fsdp_params}
