"""A rank's collectives, counted by kind and in bytes, and the gradients that it holds."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradaudit.observe.gradients import local
from gradaudit.observe.sharded import shards

_KINDS = (  # the longer ones first
    "all-gather", "all-reduce", "all-to-all", "reduce-scatter", "broadcast", "barrier", "send", "recv", "reduce",
    "gather", "scatter",
)  # fmt: skip


class Collectives(Counter[str]):
    """The number of a rank's collectives by kind, and their `bytes` by kind."""

    def __init__(self, counts: Mapping[str, int] | Iterable[str] = ()) -> None:
        super().__init__(counts)
        self.bytes: Counter[str] = Counter()

    def __reduce__(self):
        return type(self), (dict(self),), vars(self)  # so that a rank can return it


@contextmanager
def count_collectives() -> Iterator[Collectives]:
    """Counts the collectives of this rank in the block, those of backward passes included.

    The kinds are "all-reduce", "all-gather", "reduce-scatter", "broadcast", "send", "recv" and so
    on. The bytes of a collective are those of the whole tensor that is gathered or summed, and
    not what a rank sends: in a ring of K ranks, each rank sends (K - 1)/K of them in an all-gather
    or a reduce-scatter, and twice as much in an all-reduce.

    The count covers what DDP, FSDP2, pipelines and `torch.distributed`'s own functions do in this
    thread, and in the threads that run its backward passes.

    Example:
        >>> import torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> with count_collectives() as sent:
        ...     dist.all_reduce(Tensor([1.0, 2.0]))
        >>> sent, sent.bytes["all-reduce"], sent["all-gather"]
        (Collectives({'all-reduce': 1}), 8, 0)
        >>> dist.destroy_process_group()
    """
    with _Counting() as counting:
        yield counting.sent


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.sent = Collectives()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.namespace in ("c10d", "_c10d_functional"):
            name = operation.overloadpacket.__name__.replace("_", "").removeprefix("monitored")
            kind = next((kind for kind in _KINDS if name.startswith(kind.replace("-", ""))), None)
            if kind:
                self.sent[kind] += 1
                self.sent.bytes[kind] += max(map(_bytes, args))
        return operation(*args, **(kwargs or {}))


def _bytes(argument: object) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(argument) if isinstance(leaf, Tensor))


def held_gradients(model: nn.Module) -> list[Tensor]:
    """The gradients that this rank holds: in `.grad`, and in FSDP2 those not yet reduced.

    Of a sharded gradient it returns this rank's shard. Of FSDP1 it knows `.grad` alone.

    Args:
        model: Sharded by `fully_shard`, or not.

    Example:
        >>> layer = nn.Linear(3, 2, bias=False)
        >>> layer(Tensor([[1.0, 2.0, 3.0]])).sum().backward()
        >>> held_gradients(layer)
        [tensor([[1., 2., 3.],
                [1., 2., 3.]])]
    """
    states = [module._get_fsdp_state() for module in model.modules() if hasattr(module, "_get_fsdp_state")]
    several = [getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group] for state in states]
    groups = [group for groups in several for group in groups if group is not None]
    read = shards(groups)
    held = [p.grad for p in model.parameters() if p.grad is not None]
    for p in (one.sharded_param for group in groups for one in group.fsdp_params):
        held += read[id(p)].read(p)[0]
    return list({id(gradient): gradient for gradient in map(local, held)}.values())
