"""What a loop agrees on with other ranks when its model is a DDP copy or an FSDP2 shard. Needs torch alone."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import nn


class Alone:
    """One process with the whole model: nothing to agree on. The two classes below say what several ranks add."""

    world = 1

    def __init__(self, model: nn.Module):
        self.model = model
        self.local = model  # for a forward that other ranks do not take part in: one of DDP may send messages

    def add_up(self, values: list[float]) -> list[float]:
        """Each value summed over the ranks."""
        return values

    def compare(self, micro_batches: int) -> None:
        """Raises `ValueError` on every rank if the ranks cannot go through this window together."""

    def micro_batch(self, last: bool) -> AbstractContextManager:
        """Holds the forward and the backward of one micro-batch; only the `last` of a window synchronises."""
        return nullcontext()

    def average(self) -> None:
        """Averages the gradients of a window that only some ranks have run, with `local` as their model."""


class _Group(Alone):
    def __init__(self, model: nn.Module, group: dist.ProcessGroup):
        super().__init__(model)
        self.group = group
        self.world = dist.get_world_size(group)
        self.device = next(model.parameters()).device

    def add_up(self, values: list[float]) -> list[float]:
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums, group=self.group)
        return sums.tolist()


class Copies(_Group):
    """DDP: each rank has the whole model, and its backward averages the gradients over the ranks."""

    def __init__(self, model: nn.parallel.DistributedDataParallel):
        super().__init__(model, model.process_group)
        self.local = model.module

    def micro_batch(self, last: bool) -> AbstractContextManager:
        return nullcontext() if last else self.model.no_sync()

    def average(self) -> None:
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        known = own[0].new_tensor([p.grad is not None for p in parameters])
        flat = torch.cat([grad.flatten() for grad in own] + [known])  # one message
        dist.all_reduce(flat, group=self.group)
        *sums, known = flat.split([p.numel() for p in parameters] + [len(parameters)])
        for parameter, total, ranks in zip(parameters, sums, known.tolist(), strict=True):
            parameter.grad = (total / self.world).view_as(parameter).to(parameter.dtype) if ranks else None


class Shards(_Group):
    """FSDP2: each rank has a part of each parameter; every forward gathers, and a backward scatters, on all ranks."""

    def __init__(self, model: nn.Module):
        super().__init__(model, next(model.parameters()).device_mesh.get_group())

    def compare(self, micro_batches: int) -> None:
        together, squares = self.add_up([micro_batches, micro_batches**2])
        if self.world * squares != together**2:  # equal only if all numbers are
            raise ValueError(
                "FSDP2 gathers the model at every forward, so every rank needs equally many micro-batches in a window; "
                f"this rank has {micro_batches}, the {self.world} ranks have {together:g} together"
            )

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        self.model.set_requires_gradient_sync(last)
        try:
            yield
        finally:
            self.model.set_requires_gradient_sync(True)


def ranks_of(model: nn.Module) -> Alone:
    """What the loop has to agree on for this model: with nobody, unless it is a DDP or an FSDP2 model.

    >>> ranks_of(nn.Linear(2, 1)).add_up([3.0])
    [3.0]
    """
    inner = getattr(model, "_orig_mod", model)  # of torch.compile
    if isinstance(inner, nn.parallel.DistributedDataParallel):
        return Copies(inner)
    if dist.is_available() and dist.is_initialized():
        from torch.distributed.fsdp import FSDPModule

        if isinstance(inner, FSDPModule):
            return Shards(inner)
    return Alone(model)
