"""The memory that training will need, found without using it, for models of any size."""

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.optim import AdamW, Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_SIZES = 2, 4, 8  # of the micro-batches that are tried; not 1, for which operations may take a shortcut
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))


@dataclass(frozen=True, eq=False)
class MemoryPlan:
    """The memory of training, in bytes, as a function of the size of a micro-batch. Printed, it is a table.

    At each moment of an update, the memory in use is a straight line: a constant plus so many bytes per item. The peak
    is the highest of these lines, so it may be in the step for small micro-batches and in the backward for large ones.
    """

    weights: int  # and buffers
    gradients: int
    state: int  # of the optimizer
    inputs: float  # per item
    activations: float  # per item: what a forward pass saves for backward
    constant: int  # what a forward pass leaves however many items it gets
    moments: dict[str, Tensor] = field(repr=False)  # by phase: bytes at no items and bytes per item

    @property
    def fixed(self) -> int:
        """What no N makes smaller: weights, gradients and optimizer state."""
        return self.weights + self.gradients + self.state

    def peak(self, micro_batch: int) -> int:
        """The most bytes in use at once, with micro-batches of this many items."""
        return max(self._peaks(micro_batch).values())

    def phase(self, micro_batch: int) -> str:
        """Where this peak is: in the `"forward"`, the `"backward"` or the `"step"`."""
        peaks = self._peaks(micro_batch)
        return max(peaks, key=peaks.get)

    def largest(self, card: float) -> int:
        """The most items that fit into a micro-batch with `card` bytes; 0 if not even one does."""
        if self.peak(1) > card:
            return 0
        at_no_items, per_item = torch.cat(list(self.moments.values())).unbind(1)
        grows = per_item > 0
        if not grows.any():
            raise ValueError("nothing grows with the micro-batch: does make_batch(items) use items?")
        return int(((card - at_no_items) / per_item)[grows].min())

    def n_for(self, effective_batch: int, card: float) -> int:
        """The smallest N, micro-batches per update, for this many items per update with `card` bytes.

        Raises:
            ValueError: If not even one item fits: then no N helps.
        """
        if not (largest := self.largest(card)):
            raise ValueError(f"one item needs {self.peak(1):,} bytes, there are {card:,.0f}: no N helps here")
        return math.ceil(effective_batch / largest)

    def _peaks(self, micro_batch: int) -> dict[str, int]:
        items = torch.tensor([1.0, micro_batch], dtype=torch.float64)
        return {phase: math.ceil((lines @ items).max()) for phase, lines in self.moments.items()}

    def __str__(self) -> str:
        unit, name = next((size, name) for size, name in _UNITS if self.peak(1) >= size)
        rows = [
            ("weights", self.weights, ""),
            ("gradients", self.gradients, ""),
            ("optimizer state", self.state, ""),
            ("inputs, per item", self.inputs, ""),
            ("activations, per item", self.activations, ""),
            ("activations, constant", self.constant, ""),
            *((f"peak at {n:2} items", self.peak(n), f", in the {self.phase(n)}") for n in (1, 4, 16, 64)),
        ]
        return "\n".join(f"{label:<24}{size / unit:10,.2f} {name}{where}" for label, size, where in rows)


def plan_memory(
    build: Callable[[], nn.Module],
    make_batch: Callable[[int], Any],
    loss_fn: Callable[[nn.Module, Any], Tensor],
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = AdamW,
    *,
    dtype: torch.dtype | None = None,
) -> MemoryPlan:
    """Finds out how much memory training will need, for a model of any size, and uses almost none.

    It trains on fake tensors, which have a shape and a dtype but hold no numbers, and notes the bytes in use before
    and after each operation of a forward pass, a backward pass and a step. Micro-batches of two sizes give a straight
    line for each moment, and a third size checks it. A forward pass finds gradients already, as all but the first of a
    window do. Every weight that requires a gradient is assumed to get one. The inputs are those of one micro-batch; a
    loop over `windows` holds up to 2N of them, so move each to the device only when its turn comes.

    The operations are those of the CPU, so create everything there, in the functions that you pass. The default
    optimizers on a GPU treat all weights at once and need more in their step: plan for it with
    `optimizer=lambda weights: AdamW(weights, foreach=True)`. The plan does not see what a kernel allocates and frees
    within one operation, nor what a driver or a caching allocator keeps: leave them some room. A number that the code
    reads from a tensor, as with `item()`, is taken to be 1.

    Args:
        build: Called without arguments, returns the model.
        make_batch: Called with a number of items, returns a micro-batch of any kind.
        loss_fn: Called with the model and a micro-batch, returns the mean loss, as for `train_epoch`.
        optimizer: Called with the weights, returns the optimizer.
        dtype: The default dtype meanwhile, for weights and inputs; use it instead of `model.to(dtype)`, which fake
            tensors refuse.

    Raises:
        TypeError: If `build` is a model instead of a function that returns one.
        ValueError: If memory is not a straight line in the number of items, for example because a loss compares each
            item with every other.
        NotImplementedError: For an `nn.LSTM`, whose kernel allocates a large buffer that cannot be seen.

    Example:
        >>> def mse(model, batch):
        ...     return nn.functional.mse_loss(model(batch), batch)
        >>> plan = plan_memory(lambda: nn.Linear(1000, 1000), lambda items: torch.ones(items, 1000), mse)
        >>> plan.weights, plan.inputs, plan.phase(1), plan.phase(10_000)
        (4004000, 4000.0, 'step', 'backward')
    """

    def micro_batch(items: int) -> tuple[int, list[int], list[int]]:
        batch = make_batch(items)
        with memory.noted() as in_forward:
            loss = loss_fn(model, batch)
        with memory.noted() as in_backward:
            loss.backward()
        return _bytes(batch), in_forward, in_backward

    if isinstance(build, nn.Module):
        raise TypeError(f"build must be a function that returns the model, got a {type(build).__name__} itself")
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        with _Fake(), _InUse() as memory:
            model = build()
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            optimizer = optimizer(trained)
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()  # makes its state, as in a first update
            tried = [micro_batch(items) for items in _SIZES]
            with memory.noted() as in_step:
                optimizer.step()
            weights = _bytes((list(model.parameters()), list(model.buffers())))
            gradients = _bytes([parameter.grad for parameter in trained])
            state = _bytes(list(optimizer.state.values()))
    finally:
        torch.set_default_dtype(before)

    inputs, forward, backward = zip(*tried, strict=True)
    per_item = float(inputs[-1] - inputs[0]) / (_SIZES[-1] - _SIZES[0])
    step = torch.tensor(in_step, dtype=torch.float64)
    moments = {"forward": _lines(forward), "backward": _lines(backward)}
    moments["step"] = torch.stack([step, torch.full_like(step, per_item)], dim=1)  # the loop still holds its last batch
    constant, activations = (moments["forward"][-1] - moments["forward"][0]).tolist()
    return MemoryPlan(weights, gradients, state, per_item, activations, round(constant), moments)


class _Fake(FakeTensorMode):
    def __deepcopy__(self, memo: dict) -> "_Fake":
        return self  # copies of a layer, such as nn.TransformerEncoder makes, must belong to the same mode


class _InUse(TorchDispatchMode):
    """Counts the bytes of all storages that were created while it is on and still exist."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._storages: set[int] = set()
        self._noted: list[int] = []

    @contextmanager
    def noted(self) -> Iterator[list[int]]:
        """The bytes in use at each moment of the block: before and after each operation, and at its end."""
        self._noted = noted = []
        yield noted
        noted.append(self.bytes)
        self._noted = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation is torch.ops.prim.device.default:  # two calls in three; answering here is faster
            return args[0].fake_device
        if operation is torch.ops.aten.mkldnn_rnn_layer.default:
            raise NotImplementedError("nn.LSTM's kernel keeps a buffer of unknown size: no plan is safe")
        self._noted.append(self.bytes)  # without what has been freed since the last operation
        try:
            results = operation(*args, **(kwargs or {}))
        except DataDependentOutputException:  # item()
            return 1.0 if args[0].is_floating_point() else 1
        for result in results if isinstance(results, (tuple, list)) else (results,):
            if isinstance(result, Tensor):
                self._hold(result.untyped_storage())
        self._noted.append(self.bytes)
        return results

    def _hold(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._storages:  # or it is a view, or the result of an in-place operation
            self._storages.add(key)
            self.bytes += size
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._storages.remove(key)
        self.bytes -= size


def _bytes(tensors: Any) -> int:
    storages = [tensor.untyped_storage() for tensor in tree_leaves(tensors) if isinstance(tensor, Tensor)]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def _lines(tried: tuple[list[int], ...]) -> Tensor:
    """A line for each moment: the bytes at no items and the bytes per item."""
    if len({len(moments) for moments in tried}) > 1:
        raise ValueError(f"micro-batches of {_SIZES} items run different operations: no plan is safe")
    low, middle, high = torch.tensor(tried, dtype=torch.float64)
    per_item = (high - low) / (_SIZES[2] - _SIZES[0])
    off = middle - low - (_SIZES[1] - _SIZES[0]) * per_item
    if off.abs().max() > 0.01 * (middle.max() - middle[0]):
        raise ValueError(
            "memory is not a straight line in the number of items: does the loss compare each item with every other?"
        )
    return torch.stack([low - _SIZES[0] * per_item, per_item], dim=1)
