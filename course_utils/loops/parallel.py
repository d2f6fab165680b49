"""What a loop agrees on with other ranks when its model is wrapped in DDP or FSDP2. Needs torch alone."""

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Adapter:
    """What the loops need to know and to do on one rank. Here, of one process: there is nothing to agree on."""

    world_size = 1
    _nothing = nullcontext()

    def __init__(self, model: nn.Module):
        self.model = model
        self.local_model = model  # for a forward pass in which not every rank takes part

    def all_reduce_sum(self, values: list[float]) -> list[float]:
        """Sums each value over the ranks."""
        return values

    def check_epoch(self, batches: Iterable, watched: bool) -> None:
        """Compares the ranks before their first window: how many `batches`, if that is known, and who has `on_update`.

        Raises:
            ValueError: If the ranks cannot go through this epoch together; on every rank.
        """

    def agree(self, weight: float, micro_batches: int, going: bool) -> tuple[float, bool, bool]:
        """Tells the ranks what this one holds of a window: its weight, its micro-batches, whether it has one at all.

        Returns:
            The weight over all ranks, whether every rank has a micro-batch, whether any rank has a window.

        Raises:
            ValueError: If the ranks cannot go through this window together; on every rank.
        """
        return weight, True, going

    def gradient_sync(self, last: bool) -> AbstractContextManager:
        """Surrounds a micro-batch's forward and backward pass, and decides whether it exchanges gradients."""
        return self._nothing

    def abandon_window(self) -> None:
        """Forgets what a window that ended in an error has left where `zero_grad()` doesn't reach."""

    def average_gradients(self) -> None:
        """Averages the gradients of a window that only some ranks have run, with their `local_model`."""

    def all_finite(self, gradients: list[Tensor]) -> bool:
        """Whether no gradient holds an infinity or a NaN, on any rank."""
        return _all_finite(gradients)

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of all gradients together, over all ranks."""
        return nn.utils.get_total_norm([_values(gradient) for gradient in gradients])

    def evaluation(self) -> AbstractContextManager:
        """Inside, every rank has the buffers that a checkpoint of rank 0 would hold; afterwards its own again."""
        return self._nothing


class _Group(Adapter):
    in_step = ""  # why every rank needs equally many micro-batches in a window, if it does
    by_length = False  # and can't even begin an epoch otherwise

    def __init__(self, model: nn.Module, groups: list[dist.ProcessGroup], device: torch.device):
        super().__init__(model)
        self.groups, self.device = groups, device
        self.world_size = math.prod(map(dist.get_world_size, groups))

    def all_reduce_sum(self, values: list[float]) -> list[float]:
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        for group in self.groups:
            dist.all_reduce(sums, group=group)
        return sums.tolist()

    def check_epoch(self, batches: Iterable, watched: bool) -> None:
        length, known = 0, False
        if self.by_length:
            with suppress(Exception):  # of a loader that doesn't know its length
                length, known = len(batches), True
        together, squares, known, watched = self.all_reduce_sum([length, length**2, known, watched])
        if watched not in (0, self.world_size):
            raise ValueError("on_update must be passed on every rank or on none: its loss is that of all ranks")
        if known == self.world_size:
            self._check_equal(length, together, squares, "an epoch")

    def agree(self, weight: float, micro_batches: int, going: bool) -> tuple[float, bool, bool]:
        mine = [weight, micro_batches > 0, going, micro_batches > 1, micro_batches, micro_batches**2]
        weight, holding, going, accumulating, together, squares = self.all_reduce_sum(mine)
        self._check_window(accumulating > 0)
        self._check_equal(micro_batches, together, squares, "a window")
        return weight, holding == self.world_size, going > 0

    def _check_window(self, accumulating: bool) -> None:
        """Refuses what this kind of model can't do in a window."""

    def _check_equal(self, mine: int, together: float, squares: float, where: str) -> None:
        if self.in_step and self.world_size * squares != together**2:  # equal only if all numbers are
            raise ValueError(
                f"{self.in_step} in every forward pass, so every rank needs equally many micro-batches in {where}; "
                f"this rank has {mine}, the {self.world_size} ranks have {together:g} together"
            )

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        persistent = [
            (module._buffers, name, own)
            for module in self.local_model.modules()
            for name, own in module._buffers.items()
            if own is not None and name not in module._non_persistent_buffers_set
        ]
        try:
            for buffers, name, own in persistent:
                sent = own.to(self.device, copy=True).contiguous()
                for group in self.groups:
                    dist.broadcast(sent, group=group, group_src=0)
                buffers[name] = sent.to(own.device)
            yield
        finally:
            for buffers, name, own in persistent:
                buffers[name] = own


class DataParallel(_Group):
    """DDP: each rank has the whole model, and its backward pass averages the gradients over the ranks."""

    def __init__(self, model: nn.Module, ddp: DistributedDataParallel):
        super().__init__(model, [ddp.process_group], next(ddp.parameters()).device)
        self.ddp, self.local_model = ddp, ddp.module
        if self.world_size > 1 and ddp.parameters_to_ignore:
            raise ValueError(f"DDP ignores {sorted(ddp.parameters_to_ignore)}, whose gradients it would not average")
        if ddp._join_config.enable:
            raise ValueError(
                "leave out `with model.join():`, whose collectives get in the way of the loop's own: ranks may run out "
                "of micro-batches at different times without it"
            )
        if any(isinstance(m, nn.SyncBatchNorm) and m.training for m in ddp.modules()):
            self.in_step, self.by_length = "SyncBatchNorm exchanges statistics", True

    def _check_window(self, accumulating: bool) -> None:
        if accumulating and self.ddp.static_graph:
            raise ValueError(
                "DDP with static_graph=True cannot accumulate: it expects every backward pass to all-reduce, and "
                "no_sync() leaves that to the last one; build the model without static_graph, or train with n=1"
            )

    def gradient_sync(self, last: bool) -> AbstractContextManager:
        return nullcontext() if last else self.ddp.no_sync()

    def average_gradients(self) -> None:
        sparse = {id(m.weight) for m in self.local_model.modules() if getattr(m, "sparse", False)}  # DDP's own rule
        parameters = [p for p in self.local_model.parameters() if p.requires_grad]
        own = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in parameters]
        used = own[0].new_tensor([p.grad is not None for p in parameters])
        flat = torch.cat([grad.flatten() for grad in own] + [used])  # a single all-reduce
        dist.all_reduce(flat, group=self.groups[0])
        *sums, used = flat.split([p.numel() for p in parameters] + [len(parameters)])
        for parameter, total, ranks in zip(parameters, sums, used.tolist(), strict=True):
            mean = (total / self.world_size).view_as(parameter).to(parameter.dtype) if ranks else None
            parameter.grad = mean.to_sparse(1) if ranks and id(parameter) in sparse else mean


class FullySharded(_Group):
    """FSDP2: each rank has a shard of each parameter; every forward pass gathers, and the backward pass scatters.

    With a mesh of two dimensions (HSDP), the shards are replicated along the first one.
    """

    in_step = "FSDP2 gathers the model"

    def __init__(self, model: nn.Module, fsdp: nn.Module, hold_back: bool):
        if getattr(fsdp, "_abandoned", False):
            raise ValueError("an error interrupted this FSDP2 model in a window: wrap a new one and load a checkpoint")
        parameters = list(fsdp.parameters())
        mesh = getattr(parameters[0], "device_mesh", None)
        for p in parameters:
            kinds = [place.is_shard() for place in getattr(p, "placements", ())]
            if kinds not in ([True], [False, True]) or p.device_mesh != mesh:
                raise ValueError(
                    "FSDP2 is supported with every parameter sharded over one mesh, of 1 dimension or of 2 (HSDP); "
                    f"this model has a parameter of shape {tuple(p.shape)} that is not: is it ignored, also sharded by "
                    "tensor parallelism, or still gathered after a forward pass without a backward pass, for which "
                    "there is reshard()?"
                )
        super().__init__(model, mesh.get_all_groups(), torch.device(mesh.device_type))
        self.fsdp, self.hold_back = fsdp, hold_back

    @contextmanager
    def gradient_sync(self, last: bool) -> Iterator[None]:
        self.fsdp.set_requires_gradient_sync(last or not self.hold_back)
        try:
            yield
        finally:
            self.fsdp.set_requires_gradient_sync(True)

    def abandon_window(self) -> None:
        if not hasattr(self.fsdp, "reset_iter_state"):  # an older PyTorch
            self.fsdp._abandoned = True
            return
        self.fsdp.reset_iter_state()
        for state in [module._get_fsdp_state() for module in self._sharded()]:
            groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]  # PyTorch 2.12 has one
            for p in [p for group in filter(None, groups) for p in group.fsdp_params]:
                p.unsharded_accumulated_grad = None  # what isn't reduced yet survives the reset
                if hasattr(p, "_unsharded_param"):
                    p._unsharded_param.grad = None

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        try:
            with super().evaluation():
                yield
        except BaseException:
            self.abandon_window()
            raise
        finally:
            for module in self._sharded():
                module.reshard()  # without a backward pass, the outermost part stays gathered

    def _sharded(self) -> list[nn.Module]:
        return [module for module in self.fsdp.modules() if hasattr(module, "_get_fsdp_state")]

    def all_finite(self, gradients: list[Tensor]) -> bool:
        return not sum(self.all_reduce_sum([not _all_finite([gradient.to_local() for gradient in gradients])]))

    def norm(self, gradients: list[Tensor]) -> Tensor:
        return nn.utils.get_total_norm(gradients).full_tensor()


def _all_finite(gradients: list[Tensor]) -> bool:
    """Whether all are finite. Sums of squares tell fast; where one overflows, the largest magnitudes tell."""
    values = [v for v in map(_values, gradients) if v.numel()]  # a shard may be empty
    return not values or any(_finite_norms(values, order) for order in (2, math.inf))


def _values(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _finite_norms(values: list[Tensor], order: float) -> bool:
    norms = torch._foreach_norm(values, order)
    if not norms[0].is_cpu:  # one synchronisation, not one per parameter
        norms = [torch.stack([norm.to(norms[0].device) for norm in norms]).max()]
    return all(map(math.isfinite, norms))


def adapter_of(model: nn.Module, training: bool = True, hold_back: bool = False) -> Adapter:
    """Finds out what the model is wrapped in. What several ranks would train wrongly is refused.

    Args:
        model: Any module; `torch.compile` around DDP or FSDP2 is seen through.
        training: Whether gradients are needed. A plain model may be evaluated on a single rank of many.
        hold_back: Whether FSDP2 keeps a window's gradients unreduced until its last micro-batch.

    Returns:
        The adapter for this model.

    Raises:
        ValueError: With several ranks, if the model is not wrapped, or wrapped in a way that is not supported.

    Example:
        >>> adapter_of(nn.Linear(2, 1)).world_size
        1
    """
    if not (dist.is_available() and dist.is_initialized()):
        return Adapter(model)
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    inner = getattr(model, "_orig_mod", model)  # of torch.compile
    if isinstance(inner, DistributedDataParallel):
        return DataParallel(model, inner)
    if isinstance(inner, FSDPModule):
        return FullySharded(model, inner, hold_back)
    if (ranks := dist.get_world_size()) > 1:
        for name, part in inner.named_modules():
            if isinstance(part, FullyShardedDataParallel):
                raise ValueError("FSDP1 (FullyShardedDataParallel) is not supported: use fully_shard(model), FSDP2")
            if isinstance(part, FSDPModule):
                raise ValueError(f"{name!r} is sharded, the whole model is not: call fully_shard(model) on it, too")
            if isinstance(part, DistributedDataParallel):
                raise ValueError(f"{name!r} is wrapped in DDP inside another module: wrap the whole model instead")
        if training:
            raise ValueError(
                f"the process group has {ranks} ranks and the model is not wrapped, so each rank would train its own: "
                "use DistributedDataParallel(model) or fully_shard(model). If each rank is to train a model of its "
                "own, say so with DistributedDataParallel(model, process_group=dist.new_subgroups(1)[0])"
            )
    return Adapter(model)
