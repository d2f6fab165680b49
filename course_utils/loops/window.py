"""The window: which micro-batches make one update, and the gradient of their mean loss."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from math import inf, isfinite
from numbers import Real
from operator import index
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, Dataset

from course_utils.loops.parallel import Adapter, adapter_of

_PLAIN = (str, bytes, int, float, complex, type(None), torch.dtype)
_NOT_DATA = (*_PLAIN, type, type(torch), nn.Module, Dataset, DataLoader)  # nothing that a loader writes over
_CONTAINERS = (tuple, list, set, frozenset, deque)
_ONE_SHOT = type(contextmanager(lambda: iter([None]))())


def windows(batches: Iterable, n: int) -> Iterator[list]:
    """Groups micro-batches into windows: lists of `n`, the last one shorter if `n` does not divide their number.

    A whole window is fetched before it is handed out, so that the loop knows what the window holds. The price is that
    the inputs of `n` micro-batches are in memory at once, and that each must have memory of its own: a loader that
    writes every batch into the same buffer, or fills the same object again, would leave `n` copies of the last one.

    Wherever in a micro-batch that happens, it is an error: in tensors, arrays of NumPy, images of PIL, lists, mappings
    and attributes of objects. The same data may come twice. Unnoticed are writes that PyTorch doesn't count: through
    `.data`, by another process, and on a GPU by another library or to inference tensors.

    Args:
        batches: Any iterable of micro-batches, with or without a length.
        n: Micro-batches per update.

    Returns:
        An iterator over lists of micro-batches.

    Raises:
        TypeError: If `n` is not an integer, or `batches` not iterable (at the call).
        ValueError: If `n` is below 1 (at the call), or if a micro-batch was overwritten while the rest of its window
            was fetched.

    Example:
        >>> [len(window) for window in windows(range(10), 4)]
        [4, 4, 2]
    """
    n = whole_number(n, "n", "of micro-batches")
    if n < 1:
        raise ValueError(f"n must be at least 1 micro-batch per window, got {n}")
    return _fetch(iterator_of(batches), n)


def whole_number(number: Any, name: str, unit: str) -> int:
    try:
        if not isinstance(number, bool):
            return index(number)  # NumPy's integers, too
    except TypeError:
        pass
    raise TypeError(f"{name} must be a whole number {unit}, got {shown(number)}")


def shown(value: Any) -> str:
    """A value in the text of an error: never the numbers of a tensor.

    Example:
        >>> shown("4"), shown(torch.ones(2))
        ("'4' (str)", 'a Tensor of shape (2,)')
    """
    kind = type(value).__name__
    if isinstance(value, Tensor):
        return f"a {kind} of shape {tuple(value.shape)}"
    return f"{value!r} ({kind})" if isinstance(value, _PLAIN) else kind


def iterator_of(batches: Any) -> Iterator:
    try:
        return iter(batches)
    except TypeError:
        message = f"batches must be an iterable of micro-batches, such as a DataLoader, got {type(batches).__name__}"
        raise TypeError(f"{message}, which is not iterable") from None


def _fetch(batches: Iterator, n: int) -> Iterator[list]:
    while True:
        window, seen = [], []
        for batch in islice(batches, n):
            window.append(batch)
            seen.append(marked(batch))
        _check_for_overwriting(seen)
        seen.clear()  # the caller may let go of a micro-batch that it has used
        if window:
            yield window
        if len(window) < n:  # some iterators would start again after their end
            return


def _check_for_overwriting(seen: list[list[tuple[Any, Any]]]) -> None:
    for k, marks in enumerate(seen[:-1], start=1):
        if any(_is_reused(part, seen[k:]) for part in changed(marks)):
            raise ValueError(
                "the loader reuses its buffers: a micro-batch of a window was overwritten while the others were "
                "fetched; yield a copy of each batch, for example with .clone() or copy.deepcopy()"
            )


def marked(batch: Any) -> list[tuple[Any, Any]]:
    """Everything in a batch that can be written to, each with a mark that a write changes."""
    found, left = {}, [batch]
    while left:
        part = left.pop()
        if id(part) in found or isinstance(part, _NOT_DATA):
            continue
        found[id(part)] = part, _mark(part)
        left += [] if isinstance(part, Tensor) else _held_by(part)
    return list(found.values())


def changed(marks: list[tuple[Any, Any]]) -> list:
    """The parts of a batch whose marks have changed. A mapping that makes its values when they are read has none."""
    return [part for part, mark in marks if mark != (now := _mark(part)) and now == _mark(part)]


def _mark(part: Any) -> Any:
    if (memory := _uncounted(part)) is not None:
        return crc32(memory)
    if isinstance(part, Tensor):
        return None if part.is_inference() else part._version
    return [(id(child), child) for child in _held_by(part)]  # the children are kept, so an id stands for one object


def _uncounted(part: Any) -> Any:
    """The memory of an array, an image or a tensor whose version doesn't tell when it is written to; else None."""
    if not isinstance(part, Tensor):
        return part.tobytes() if hasattr(type(part), "tobytes") else None
    if part.layout is not torch.strided or part.device.type != "cpu" or part.is_shared():
        return None
    if part.untyped_storage().resizable() and not part.is_inference():  # NumPy has no access to it
        return None
    return part.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8).numpy()


def _held_by(part: Any) -> list:
    """The elements of a container, and the attributes of any object."""
    elements = part.values() if isinstance(part, Mapping) else part if isinstance(part, _CONTAINERS) else ()
    state = object.__getstate__(part)
    attributes = state if isinstance(state, tuple) else (state,)  # in __dict__, and in slots
    return [*elements, *(value for each in attributes if each for value in each.values())]


def _is_reused(part: Any, later: list[list[tuple[Any, Any]]]) -> bool:
    """Whether a changed part was written over, and not only another view of the same storage, which has its version."""
    is_strided = isinstance(part, Tensor) and part.layout is torch.strided
    if _uncounted(part) is not None or (is_strided and part.untyped_storage().nbytes() == part.nbytes):
        return True
    return any(_place(other) == _place(part) for marks in later for other, _ in marks)


def _place(part: Any) -> int:
    return part.data_ptr() if isinstance(part, Tensor) and part.layout is torch.strided else id(part)


def _tensors(batch: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors of a batch, each with its path: an "s" for each sequence that it is in, an "m" for each mapping."""
    if isinstance(batch, Tensor):
        yield path, batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from _tensors(part, path + "m")
    elif isinstance(batch, (tuple, list)):
        for part in batch:
            yield from _tensors(part, path + "s")


def items(batch: Any) -> int:
    """Counts the samples of a batch-first micro-batch: the first dimension, in which all its tensors must agree.

    Where all first dimensions agree, a sequence-first batch can't be told from a batch-first one, nor a list of samples
    of one shape from a list of fields: by convention that dimension is the batch. If it isn't, pass `weight=` to the
    loop.

    Args:
        batch: A tensor, or a tuple, list or mapping of tensors. Entries that hold no tensor are ignored. What is nested
            more deeply must agree, too, but can't be counted on its own: it could be a list of samples.

    Raises:
        TypeError: If the first dimensions differ; if all tensors are in dicts or lists inside a list or tuple, such as
            `(dict, dict)`; or of a `PackedSequence`, which has no such dimension.

    Example:
        >>> items((torch.zeros(8, 64), torch.zeros(8)))
        8
    """
    tensors = list(_tensors(batch))
    lengths = {len(tensor) if tensor.dim() else None for _, tensor in tensors}
    is_clear = any(path == "s" or not path.strip("m") for path, _ in tensors) and not isinstance(batch, PackedSequence)
    if len(lengths) != 1 or None in lengths or not is_clear:
        shapes = ", ".join(str(tuple(tensor.shape)) for _, tensor in tensors[:8])
        held = f"a {type(batch).__name__} with tensors of shapes {shapes}{', ...' * (len(tensors) > 8)}"
        raise TypeError(
            f"cannot count the samples of {held if tensors else type(batch).__name__}: pass weight=, a function of one "
            "batch that returns their number"
        )
    return lengths.pop()


def backward_window(
    model: nn.Module,
    window: Iterable,
    loss_fn: Callable[[nn.Module, Any], Tensor],
    weight: Callable[[Any], float] = items,
    *,
    scaler: GradScaler | None = None,
    autocast: AbstractContextManager | None = None,
    hold_back: bool = False,
) -> Tensor | None:
    """Adds the gradient of a window's mean loss to `.grad`, for training loops of your own.

    The gradient is that of one large batch with everything the window holds, however unequal its micro-batches are. It
    doesn't zero gradients, unscale them or step: zero them before the next window, and unscale them if you pass a
    scaler.

    A DDP or FSDP2 model gets the gradient over what all ranks hold; DDP exchanges it once. All ranks call this equally
    often: one that has run out of batches passes an empty window, until nobody has anything and all get None.

    Args:
        model: The model, also wrapped in DDP or FSDP2, also compiled.
        window: The micro-batches of one update, such as a list from `windows`.
        loss_fn: `loss_fn(model, batch)` returns the mean loss of a micro-batch, a scalar tensor.
        weight: `weight(batch)` returns over how many samples or tokens that mean was taken; a micro-batch with 0 is
            left out. By default, `items`.
        scaler: The GradScaler that multiplies the losses, for float16.
        autocast: The context for the forward pass, such as `torch.autocast("cuda", torch.bfloat16)`.
        hold_back: Under FSDP2, reduce the gradients once a window, as in `train_epoch`.

    Returns:
        The mean loss of the window over all ranks, a scalar tensor on the model's device in float32 or wider, without a
        graph and without the scaler's factor; None if the window holds nothing, on any rank.

    Raises:
        TypeError: If an argument, a weight or a loss has the wrong type.
        ValueError: If a weight or a loss has an unusable value, or if the ranks cannot go through this window together.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> for window in windows([torch.ones(3, 2), torch.ones(1, 2)], 2):
        ...     loss = backward_window(model, window, lambda model, x: model(x).mean())
        ...     optimizer.step()
        ...     optimizer.zero_grad()
    """
    check_window_options(weight, scaler, autocast)
    parallel = adapter_of(model, hold_back=hold_back)
    window = share_out(parallel, list(window), weight)
    if not window.total:
        return None
    loss = accumulate(parallel, window, loss_fn, scaler, autocast)
    if parallel.world_size > 1:
        (total,) = parallel.all_reduce_sum([float(loss)])
        dtype = torch.promote_types(next(model.parameters()).dtype, torch.float32)  # the same on every rank
        loss = torch.tensor(total / parallel.world_size, dtype=dtype, device=parallel.device)
    return loss


def check_window_options(weight: Any, scaler: Any, autocast: Any) -> None:
    if not callable(weight):
        raise TypeError(f"weight must be a function of one batch, got {shown(weight)}")
    if autocast is not None and not isinstance(autocast, AbstractContextManager):
        raise TypeError(f"autocast must be a context manager, got {shown(autocast)}")
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise TypeError(f"scaler must be a GradScaler, got {shown(scaler)}")
    if isinstance(autocast, _ONE_SHOT):
        raise TypeError(
            "autocast must be a context that can be entered for every micro-batch, such as torch.autocast(...); a "
            "generator decorated with @contextmanager can be entered only once"
        )


class Window:
    """A window of this rank, and what all ranks hold of it together."""

    def __init__(self, shares: list[tuple[Any, float]], total: float, everyone: bool, going: bool):
        self.shares = shares  # (micro-batch, its share of the mean over all ranks)
        self.total = total  # samples or tokens over all ranks
        self.everyone = everyone  # does every rank have something to run?
        self.going = going  # has any rank a window left?


def share_out(parallel: Adapter, window: list, weight: Callable[[Any], float]) -> Window:
    """Gives each micro-batch its share of the mean over all ranks. Micro-batches of weight 0 are left out."""
    weights = weights_of(window, weight)
    if 0 in weights:
        window = [batch for batch, count in zip(window, weights, strict=True) if count]
    held = list(filter(None, weights))
    total, everyone, going = parallel.agree(sum(held), len(held), bool(weights))
    if not isfinite(total):
        raise ValueError(f"the weights of a window must have a finite sum, got {total}")
    return Window(list(zip(window, _shares(held, total, parallel.world_size), strict=True)), total, everyone, going)


def _shares(weights: list[float], total: float, world_size: int) -> list[float]:
    # Gradients are averaged over the ranks, which divides them by their number.
    return [world_size * weight / total for weight in weights]


def weights_of(window: list, weight: Callable[[Any], float]) -> list[float]:
    """The weight of each micro-batch, as a number of samples or tokens that has been checked.

    Example:
        >>> weights_of([torch.zeros(3), torch.zeros(1)], items)
        [3, 1]
    """
    return check_weights([weight(batch) for batch in window])


def check_weights(weights: list) -> list[float]:
    weights = read(weights)
    for count in weights:
        if not isinstance(count, (int, float, Real)):
            raise TypeError(f"weight(batch) must be a number, got {shown(count)}")
        if not 0 <= count < inf:  # nor NaN
            raise ValueError(f"weight(batch) must be a number of items or tokens, 0 or more, got {count}")
    return weights


def read(values: list) -> list:
    """The values of scalar tensors, with one wait for their device and not one each; all else as it is.

    Example:
        >>> read([torch.tensor(0.5), 2, torch.tensor(1.5)])
        [0.5, 2, 1.5]
    """
    values = list(values)
    places = [k for k, value in enumerate(values) if isinstance(value, Tensor) and value.dim() == 0]
    if places:
        scalars = torch.stack([values[k].to(values[places[0]].device) for k in places])
        for k, value in zip(places, scalars.tolist(), strict=True):
            values[k] = value
    return values


def accumulate(
    parallel: Adapter, window: Window, loss_fn: Callable, scaler: GradScaler | None, autocast: Any
) -> Tensor | float:
    """Runs a window: its gradients are then in `.grad`, averaged over the ranks. Returns this rank's part of the loss.

    The part counts `world_size` times, as the gradients do before they are averaged.
    """
    model = parallel.model if window.everyone else parallel.local_model
    autocast = autocast or nullcontext()
    window_loss = 0.0
    try:
        for k, (batch, share) in enumerate(window.shares, start=1):
            with parallel.gradient_sync(k == len(window.shares)):
                loss = _forward(model, batch, share, loss_fn, autocast)
                _backward(loss, scaler)
            # A sum in 16 bits would lose what is small.
            window_loss += loss.detach().to(torch.promote_types(loss.dtype, torch.float32))
    except BaseException:
        parallel.abandon_window()
        raise
    if not window.everyone:
        parallel.average_gradients()
        if scaler:
            scaler.scale(next(model.parameters()).detach())  # a scaler has no scale before its first use
    return window_loss


def _forward(model: nn.Module, batch: Any, share: float, loss_fn: Callable, autocast: Any) -> Tensor:
    with autocast:
        loss = loss_fn(model, batch)
        if not isinstance(loss, Tensor):
            its = ".loss" if hasattr(loss, "loss") else '["loss"]' if isinstance(loss, dict) and "loss" in loss else ""
            hint = f": return its {its}" if its else ""
            raise TypeError(f"loss_fn must return a scalar tensor, got {shown(loss)}{hint}")
        if loss.dim() or not loss.requires_grad:
            raise ValueError(
                f"loss_fn must return a scalar tensor with a graph, got one of shape {tuple(loss.shape)}, "
                f"requires_grad={loss.requires_grad}"
            )
        return loss * share


def _backward(loss: Tensor, scaler: GradScaler | None) -> None:
    (scaler.scale(loss) if scaler else loss).backward()
