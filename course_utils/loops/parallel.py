"""What a loop agrees on with other ranks when its model is wrapped in DDP or FSDP2."""

import math
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Adapter:
    """What the loops need on one rank. Here, of one process: there is nothing to agree on."""

    world_size = 1
    _nothing = nullcontext()

    def __init__(self, model: nn.Module):
        self.model = model
        self.local_model = model  # for a forward pass in which not every rank takes part

    def all_reduce(self, values: list[float]) -> list[float]:
        """Sums each value over the ranks."""
        return values

    def compare_options(self, options: dict[str, float]) -> None:
        """Compares the ranks' options before their first window.

        Raises:
            ValueError: If they differ; on every rank.
        """

    def agree(self, counts: list[float], micro_batches: int, going: bool) -> tuple[list[float], bool, bool]:
        """Tells the ranks what this one holds of a window: a count for each loss, micro-batches.

        Returns:
            The counts over all ranks, whether every rank has a micro-batch, whether any rank has a
            window.

        Raises:
            ValueError: If the ranks cannot go through this window together; on every rank.
        """
        return counts, True, going

    def gradient_sync(self, last: bool) -> AbstractContextManager:
        """Surrounds a micro-batch's two passes, and decides whether it exchanges gradients."""
        return self._nothing

    def abandon_window(self) -> None:
        """Sees to what an error has left of a window where `zero_grad()` doesn't reach."""

    def average_gradients(self) -> None:
        """Averages the gradients of a window that only some ranks have run."""

    def check_gradients(self) -> None:
        """Compares the gradients of a window that every rank has run.

        Raises:
            ValueError: If the ranks have not exchanged them; on every rank.
        """

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of all gradients together, over all ranks."""
        return nn.utils.get_total_norm([_values(gradient) for gradient in gradients])

    def norm_of_large(self, gradients: list[Tensor]) -> Tensor:
        """The same in float64, in which the squares of float32's largest numbers are finite."""
        large = [self.norm([g.to(torch.promote_types(g.dtype, torch.float64))]) for g in gradients]
        return nn.utils.get_total_norm(large)

    def evaluation(self) -> AbstractContextManager:
        """Inside, every rank has the buffers of rank 0's checkpoint; afterwards its own again."""
        return self._nothing


class _Group(Adapter):
    no_windows = ""  # why a window must be one micro-batch, if it must
    in_step = ""  # why every rank needs equally many micro-batches in a window, if it does

    def __init__(self, model: nn.Module, groups: list[dist.ProcessGroup], device: torch.device):
        super().__init__(model)
        self.groups, self.device = groups, device
        self.world_size = math.prod(map(dist.get_world_size, groups))

    def all_reduce(self, values: list[float], op: dist.ReduceOp = dist.ReduceOp.SUM) -> list[float]:
        together = torch.tensor(values, dtype=torch.float64, device=self.device)
        for group in self.groups:
            dist.all_reduce(together, op, group=group)
        return together.tolist()

    def _extremes(self, values: list[float]) -> list[tuple[float, float]]:
        """The lowest and the highest of each value over the ranks."""
        ends = self.all_reduce([*values, *(-value for value in values)], dist.ReduceOp.MAX)
        return [(-low, high) for high, low in zip(ends[: len(values)], ends[len(values) :], strict=True)]

    def compare_options(self, options: dict[str, float]) -> None:
        for name, (low, high) in zip(options, self._extremes(list(options.values())), strict=True):
            if low != high:
                raise ValueError(f"pass the same {name} on every rank, or the ranks' updates would differ")

    def agree(self, counts: list[float], micro_batches: int, going: bool) -> tuple[list[float], bool, bool]:
        # A rank without a window knows no losses.
        own = [*counts, 0.0][0], len(counts), len(counts) ** 2
        mine = [*own, micro_batches > 0, going, micro_batches, micro_batches**2]
        first, losses, lengths, holding, going, together, squares = self.all_reduce(mine)
        if self.no_windows and squares > together:  # on some rank more than one
            raise ValueError(self.no_windows)
        # Equal only if all numbers are.
        if self.in_step and self.world_size * squares != together**2:
            raise ValueError(
                f"{self.in_step} in every forward pass, so every rank needs equally many micro-batches in a window; "
                f"this rank has {micro_batches}, the {self.world_size} ranks have {together:g} together"
            )
        if going * lengths != losses**2:
            raise ValueError("weight(batch) must return equally many counts on every rank, one for each loss")
        totals = [first]
        if losses > going:
            totals += self.all_reduce(counts[1:] or [0.0] * (round(losses / going) - 1))
        return totals, holding == self.world_size, going > 0

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
    """DDP: each rank has the whole model, and its backward pass averages the gradients."""

    def __init__(self, model: nn.Module, ddp: DistributedDataParallel):
        super().__init__(model, [ddp.process_group], next(ddp.parameters()).device)
        self.ddp, self.local_model = ddp, ddp.module
        embeddings = [m for m in ddp.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
        self.sparse = {id(m.weight) for m in embeddings if m.sparse}  # DDP's own rule
        if ddp._join_config.enable:
            raise ValueError(
                "leave out `with model.join():`, which ranks that run out of micro-batches don't need here"
            )
        if ddp.static_graph:
            self.no_windows = "DDP with static_graph=True fails under no_sync(): build the model without it, or use n=1"
        if any(isinstance(m, nn.SyncBatchNorm) and m.training for m in ddp.modules()):
            self.in_step = "SyncBatchNorm exchanges statistics"

    def gradient_sync(self, last: bool) -> AbstractContextManager:
        return nullcontext() if last else self.ddp.no_sync()

    def check_gradients(self) -> None:
        if self.world_size == 1:
            return
        named = dict(self.local_model.named_parameters())
        left_out = self._left_out()
        numbers = _fingerprints([p.grad for p in named.values()], self.device)
        ends = self._extremes(
            [math.inf if id(p) in left_out else number for p, number in zip(named.values(), numbers, strict=True)]
        )
        waits = [name for name, (_, high) in zip(named, ends, strict=True) if high == math.inf]
        own = [name for name, (low, high) in zip(named, ends, strict=True) if high - low > 1e-5 * abs(high)]
        if waits:
            raise ValueError(
                f"the last micro-batch of this window doesn't use {_listed(waits)} on every rank, or it is frozen, and "
                "DDP waits for it: build it with DistributedDataParallel(model, find_unused_parameters=True)"
            )
        if own:
            raise ValueError(
                f"DDP has not averaged the gradient of {_listed(own)} over the ranks: let loss_fn call the model that "
                "it is given, not model.module; wrap the model again after a parameter was added or unfrozen, and let "
                "DDP ignore none that it trains"
            )

    def _left_out(self) -> set[int]:
        """The ids of the parameters that the last backward pass left out: DDP's reducer waits.

        It gets a zero for them, so that it does its part in the all-reduces in which other ranks
        may wait for this one.
        """
        try:
            self.ddp._check_reducer_finalized()
        except AttributeError:  # another PyTorch: gradients that differ are noticed all the same
            return set()
        except RuntimeError as error:
            found = re.search(r"indices which did not receive grad for rank \d+:((?: \d+)+)", str(error))
            if not found:
                raise
            its_own = {id(p) for p in self.ddp._module_parameters if p.requires_grad}
            with suppress(RuntimeError):  # a sparse bucket has none; else not those unfrozen later
                its_own = {id(p) for each in self.ddp.reducer._get_zeros_like_grad_buckets() for p in each.parameters()}
            indexed = [p for p in self.ddp._module_parameters if id(p) in its_own]
            left_out = [indexed[int(k)] for k in found[1].split()]
            for p in left_out:
                zero, trains = torch.zeros_like(p), p.requires_grad
                p.requires_grad_()  # it may have been frozen later
                torch.autograd.backward(p, zero.to_sparse(1) if id(p) in self.sparse else zero)
                p.requires_grad_(trains)
            return set(map(id, left_out))
        return set()

    def average_gradients(self) -> None:
        parameters = [p for p in self.local_model.parameters() if p.requires_grad]
        own = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in parameters]
        used = own[0].new_tensor([p.grad is not None for p in parameters])
        flat = torch.cat([grad.flatten() for grad in own] + [used])  # a single all-reduce
        dist.all_reduce(flat, group=self.groups[0])
        *sums, used = flat.split([p.numel() for p in parameters] + [len(parameters)])
        for parameter, total, ranks in zip(parameters, sums, used.tolist(), strict=True):
            mean = (total / self.world_size).view_as(parameter).to(parameter.dtype) if ranks else None
            parameter.grad = mean.to_sparse(1) if ranks and id(parameter) in self.sparse else mean


class FullySharded(_Group):
    """FSDP2: each rank has a shard of each parameter, gathers in forward and scatters in backward.

    With a mesh of two dimensions (HSDP), the shards are replicated along the first one.
    """

    in_step = "FSDP2 gathers the model"

    def __init__(self, model: nn.Module, fsdp: nn.Module, hold_back: bool):
        if getattr(fsdp, "_abandoned", False):
            raise ValueError("an error interrupted this FSDP2 model: wrap a new one and load a checkpoint")
        parameters = list(fsdp.parameters())
        mesh = getattr(parameters[0], "device_mesh", None)
        for p in parameters:
            kinds = [placement.is_shard() for placement in getattr(p, "placements", ())]
            if kinds not in ([True], [False, True]) or p.device_mesh != mesh:
                raise ValueError(
                    "FSDP2 is supported with every parameter sharded over one mesh, of 1 dimension or of 2 (HSDP); "
                    f"this model has a parameter of shape {tuple(p.shape)} that is not. Is it ignored, also sharded by "
                    "tensor parallelism, or still gathered after a forward pass (call reshard())?"
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
        self.fsdp._abandoned = True  # what isn't reduced yet is where only private names reach

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        try:
            with super().evaluation():
                yield
        except BaseException:
            self.abandon_window()
            raise
        finally:
            for module in self.fsdp.modules():
                if hasattr(module, "reshard"):
                    module.reshard()  # without a backward pass, the outermost part stays gathered

    def norm(self, gradients: list[Tensor]) -> Tensor:
        return nn.utils.get_total_norm(gradients).full_tensor()


def _values(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _fingerprints(gradients: list[Tensor | None], device: torch.device) -> list[float]:
    """A number for each gradient, equal where it is the same. The device is waited for once."""
    numbers = [torch.tensor(-1.0) if gradient is None else _fingerprint(_values(gradient)) for gradient in gradients]
    together = torch.stack([number.to(device, torch.float64) for number in numbers])
    return together.nan_to_num(nan=-2.0, posinf=-2.0, neginf=-2.0).tolist()


def _fingerprint(values: Tensor) -> Tensor:
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    # The sum tells gradients of opposite signs apart; this part of it is between -norm and norm.
    return 2 * values.norm() + values.sum().real / math.sqrt(values.numel() or 1)


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + f" and {len(names) - 3} more" * (len(names) > 3)


def adapter_of(model: nn.Module, training: bool = True, hold_back: bool = False) -> Adapter:
    """Finds out what the model is wrapped in. What several ranks would train wrongly is refused.

    Args:
        model: Any module; `torch.compile` around DDP or FSDP2 is seen through.
        training: Whether gradients are needed. A plain model may be evaluated on a single rank of
            many.
        hold_back: Whether FSDP2 keeps a window's gradients unreduced until its last micro-batch.

    Returns:
        The adapter for this model.

    Raises:
        ValueError: With several ranks, if the model is not wrapped, or wrapped in a way that is not
            supported.

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
            if isinstance(part, (FullyShardedDataParallel, FSDPModule, DistributedDataParallel)):
                raise ValueError(
                    f"the module {name!r} is a {type(part).__name__}: wrap the whole model, in DDP or with fully_shard "
                    "(FSDP2); FSDP1 is not supported"
                )
        if training:
            raise ValueError(
                f"the process group has {ranks} ranks and the model is not wrapped, so each rank would train its own: "
                "use DistributedDataParallel(model) or fully_shard(model). If each rank is to train a model of its "
                "own, say so with DistributedDataParallel(model, process_group=dist.new_subgroups(1)[0])"
            )
    return Adapter(model)
