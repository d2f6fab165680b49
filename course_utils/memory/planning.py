"""The memory that training will need, found without needing it, for models of any size. Needs torch alone."""

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.optim import AdamW, Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_SMALL, _CHECKED, _LARGE = 2, 4, 8  # items that are tried; not 1, which can take a shorter way
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))


@dataclass(frozen=True, eq=False)
class Plan:
    """The memory of training, by the items of a micro-batch. All sizes are in bytes; printed, it is a table.

    At each moment of an update a part of the memory is there whatever the micro-batch, and a part grows with its
    items: a straight line. The peak is the highest of these lines, so it can lie in the step for small micro-batches
    and in the backward for large ones.
    """

    weights: int  # and buffers
    gradients: int
    state: int  # of the optimizer
    inputs: float  # per item
    activations: float  # per item: what a forward leaves for its backward
    constant: int  # what a forward leaves whatever its items, such as the copies of the weights that autocast makes
    moments: dict[str, Tensor] = field(repr=False)  # of each phase: bytes at no items, and bytes per item

    @property
    def fixed(self) -> int:
        """What no N makes smaller: weights, gradients and the optimizer's state."""
        return self.weights + self.gradients + self.state

    def peak(self, micro_batch: int) -> int:
        """The most bytes that are in use at once, where micro-batches have so many items."""
        return max(self._peaks(micro_batch).values())

    def phase(self, micro_batch: int) -> str:
        """Where this peak lies: in the `"forward"`, the `"backward"` or the `"step"`."""
        peaks = self._peaks(micro_batch)
        return max(peaks, key=peaks.get)

    def largest(self, card: float) -> int:
        """The most items that a micro-batch can have with `card` bytes; 0 if not even one item fits."""
        if self.peak(1) > card:
            return 0
        at_no_items, per_item = torch.cat(list(self.moments.values())).unbind(1)
        grows = per_item > 0
        if not grows.any():
            raise ValueError("nothing grows with the micro-batch: does make_batch(items) use items?")
        return int(((card - at_no_items) / per_item)[grows].min())

    def n_for(self, effective_batch: int, card: float) -> int:
        """The smallest N, micro-batches per update, that gives so many items to an update with `card` bytes.

        **Raises:** `ValueError` if not even one item fits: then no N helps.
        """
        largest = self.largest(card)
        if not largest:
            raise ValueError(f"one item needs {self.peak(1):,} bytes, there are {card:,.0f}: no N helps here")
        return math.ceil(effective_batch / largest)

    def _peaks(self, micro_batch: int) -> dict[str, int]:
        if not micro_batch >= 1:
            raise ValueError(f"a micro-batch holds at least 1 item, got {micro_batch}")
        items = torch.tensor([1.0, micro_batch], dtype=torch.float64)
        return {phase: math.ceil((lines @ items).max()) for phase, lines in self.moments.items()}

    def __str__(self) -> str:
        unit, name = next((size, name) for size, name in _UNITS if self.peak(1) >= size)
        rows = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer's state": self.state,
            "inputs, per item": self.inputs,
            "activations, per item": self.activations,
            "activations, constant": self.constant,
        }
        lines = [f"{label:<24}{size / unit:10,.2f} {name}" for label, size in rows.items()]
        for items in (1, 4, 16, 64):
            lines.append(f"peak at {items:2} items{self.peak(items) / unit:18,.2f} {name}, in the {self.phase(items)}")
        return "\n".join(lines)


def plan_memory(
    build: Callable[[], nn.Module],
    make_batch: Callable[[int], Any],
    loss_fn: Callable[[nn.Module, Any], Tensor],
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = AdamW,
    *,
    dtype: torch.dtype | None = None,
    autocast: AbstractContextManager | None = None,
    accumulating: bool = True,
) -> Plan:
    """Finds out how much memory training will need, for a model of any size, and uses next to none.

    It trains on fake tensors, which have a shape and a type and hold no numbers, and notes how many bytes are in use
    before and after each operation of a forward, a backward and a step, once the optimizer has its state. It does so
    for micro-batches of two sizes, which make a line for each moment; the forward of a third size checks the lines.
    All weights that require a gradient are taken to get one.

    The operations are those of the CPU, so build everything there. An optimizer that treats all weights at once, the
    usual way on a GPU, takes more in its step: plan for it with `optimizer=lambda weights: AdamW(weights,
    foreach=True)`. Not seen is what a kernel takes and gives back within one operation, nor what a driver or an
    allocator keeps for itself: leave them a part of the card. A number that the code asks for, as with `item()`, is
    taken to be 1.

    **Arguments:** `build()`: the model; `make_batch(items)`: a micro-batch of any kind; `loss_fn(model, batch)`: its
    mean loss, as for `train_epoch`; `optimizer(weights)`: the optimizer; `dtype`: of the weights and of floating
    inputs, in place of `model.to(dtype)`, which fake tensors refuse; `autocast`: the context of the forward, on the
    CPU; `accumulating`: whether a forward finds gradients there, as all but the first of a window do.

    **Returns:** a `Plan`.

    **Raises:** `ValueError` if memory is not a straight line in the items, as where a loss compares each item with
    each; `NotImplementedError` for an `nn.LSTM`, whose kernel keeps a large space that is not seen.

    >>> def mse(model, batch):
    ...     return nn.functional.mse_loss(model(batch), batch)
    >>> found = plan_memory(lambda: nn.Linear(1000, 1000), lambda items: torch.ones(items, 1000), mse)
    >>> found.weights, found.inputs, found.phase(1), found.phase(10_000)
    (4004000, 4000.0, 'step', 'backward')
    """
    autocast = autocast or nullcontext()

    def micro_batch(items: int, backward: bool = True) -> dict[str, list[int]]:
        with _default(dtype):
            batch = make_batch(items)
        if not accumulating:
            model.zero_grad()
        with memory.noted() as in_forward, autocast:
            loss = loss_fn(model, batch)
        with memory.noted() as in_backward:
            if backward:
                loss.backward()
        return {"inputs": [_bytes(batch)], "forward": in_forward, "backward": in_backward}

    with _Fake(), _InUse() as memory:
        with _default(dtype):
            model = build()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = optimizer(trained)
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()  # makes its state, as in a first update
        checked = micro_batch(_CHECKED, backward=False)
        small, large = micro_batch(_SMALL), micro_batch(_LARGE)
        with memory.noted() as in_step:
            optimizer.step()
        weights = _bytes((list(model.parameters()), list(model.buffers())))
        gradients = _bytes([parameter.grad for parameter in trained])
        state = _bytes(list(optimizer.state.values()))

    moments = {phase: _lines(small[phase], large[phase]) for phase in small}
    _check(moments["forward"], checked["forward"])
    inputs = moments.pop("inputs")[0, 1]
    step = torch.tensor(in_step, dtype=torch.float64)
    moments["step"] = torch.stack([step, torch.full_like(step, inputs)], dim=1)  # a loop still has its last batch
    constant, per_item = (moments["forward"][-1] - moments["forward"][0]).tolist()
    return Plan(weights, gradients, state, float(inputs), per_item, round(constant), moments)


class _Fake(FakeTensorMode):
    def __deepcopy__(self, memo: dict) -> "_Fake":
        return self  # copies of a layer, as nn.TransformerEncoder makes them, belong to the same mode


class _InUse(TorchDispatchMode):
    """The bytes of all storages that were made while it is on and are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._storages: dict[int, weakref.ref] = {}
        self._noted: list[int] = []

    @contextmanager
    def noted(self) -> Iterator[list[int]]:
        """The bytes in use at each moment of the block: before and after each operation, and at its end."""
        self._noted = noted = []
        yield noted
        noted.append(self.bytes)
        self._noted = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation is torch.ops.prim.device.default:  # two of three calls, and quicker to answer here
            return args[0].fake_device
        if operation is torch.ops.aten.mkldnn_rnn_layer.default:
            raise NotImplementedError("the kernel of nn.LSTM keeps a space of unknown size: no plan is safe")
        self._noted.append(self.bytes)  # what has been let go since the last operation no longer counts
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
        if key in self._storages:  # a view, or the result of an operation in place
            return

        def let_go(_: weakref.ref) -> None:
            del self._storages[key]
            self.bytes -= size

        self._storages[key] = weakref.ref(storage, let_go)
        self.bytes += size


@contextmanager
def _default(dtype: torch.dtype | None) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _bytes(tensors: Any) -> int:
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tree_leaves(tensors) if isinstance(t, Tensor)}
    return sum(storage.nbytes() for storage in storages.values())


def _lines(small: list[int], large: list[int]) -> Tensor:
    """For each moment a line: the bytes at no items and the bytes per item."""
    if len(small) != len(large):
        raise ValueError(f"micro-batches of {_SMALL} and of {_LARGE} items take different operations: no plan is safe")
    low, high = torch.tensor([small, large], dtype=torch.float64)
    per_item = (high - low) / (_LARGE - _SMALL)
    return torch.stack([low - _SMALL * per_item, per_item], dim=1)


def _check(lines: Tensor, found: list[int]) -> None:
    if len(found) == len(lines):
        expected = lines @ torch.tensor([1.0, _CHECKED], dtype=torch.float64)
        error = (expected - torch.tensor(found, dtype=torch.float64)).abs().max()
        if error <= 0.01 * (max(found) - found[0]):
            return
    raise ValueError(
        "the memory of a forward is not a straight line in the items of its micro-batch: does it compare each item "
        "with each?"
    )
