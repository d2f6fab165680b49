"""The window: which micro-batches make one update, and the gradient of their mean loss."""

import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import reduce
from itertools import islice
from math import inf, isfinite
from numbers import Real
from operator import add, index
from types import FunctionType, ModuleType, NoneType, SimpleNamespace
from typing import Any, NamedTuple
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, Dataset

from course_utils.loops.parallel import Adapter, adapter_of

_IGNORED = -100  # the target that cross_entropy leaves out by default
_SHORT = (str, bytes, int, float, complex, NoneType, torch.dtype)
# No loader writes over these.
_NOT_DATA = (FunctionType, ModuleType, type, nn.Module, Dataset, DataLoader)
# A decorated generator can be entered only once.
_ONE_SHOT = type(contextmanager(lambda: iter([None]))())


def windows(batches: Iterable, n: int) -> Iterator[list]:
    """Groups micro-batches into windows: lists of `n`, of which the last one may be shorter.

    A whole window is fetched before it is handed out, so that the loop knows what the window holds.
    The price is that the inputs of `n` micro-batches are in memory at once (of `2 * n` while the
    next window is fetched, unless the loop ends with `del window, batch`), and that each must have
    memory of its own: a loader that writes every batch into the same buffer, or fills the same
    object again, would leave `n` copies of the last one. That is an error, wherever in a
    micro-batch pickle sees it. The same data may come twice.

    Args:
        batches: Any iterable of micro-batches, with or without a length.
        n: Micro-batches per update.

    Returns:
        An iterator over lists of micro-batches.

    Raises:
        TypeError: If `n` is not an integer, or `batches` not iterable (at the call).
        ValueError: If `n` is below 1 (at the call), or if a micro-batch was overwritten while the
            rest of its window was fetched. Unnoticed are writes that PyTorch doesn't count: through
            `.data`, by another process, on a GPU by another library or to inference tensors; and to
            what an object holds that can't be pickled.

    Example:
        >>> [len(window) for window in windows(range(10), 4)]
        [4, 4, 2]
    """
    return _fetch(iter(batches), whole_number(n, "n"))


def whole_number(number: Any, name: str) -> int:
    if isinstance(number, bool) or not hasattr(number, "__index__"):  # NumPy's integers have it
        raise TypeError(f"{name} must be a whole number, got {shown(number)}")
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return index(number)


def shown(value: Any) -> str:
    """A value in the text of an error: never the numbers of a tensor.

    Example:
        >>> shown("4"), shown(torch.ones(2))
        ("'4' (str)", 'a Tensor of shape (2,)')
    """
    kind = type(value).__name__
    if isinstance(value, Tensor):
        return f"a {kind} of shape {tuple(value.shape)}"
    return f"{value!r} ({kind})" if isinstance(value, _SHORT) else kind


def _fetch(batches: Iterator, n: int) -> Iterator[list]:
    while True:
        window, seen = [], []
        for batch in islice(batches, n):
            window.append(batch)
            seen.append(Contents(batch))
            del batch  # what the caller lets go of is free
        _check_for_overwriting(window, seen)
        del seen
        if window:
            yield window
        if len(window) < n:  # some iterators would start again after their end
            return


def _check_for_overwriting(window: list, seen: list["Contents"]) -> None:
    for k, (batch, before) in enumerate(zip(window[:-1], seen, strict=False), start=1):
        if before.differ(batch) or any(_is_reused(tensor, seen[k:]) for tensor in before.written()):
            raise ValueError(
                "the loader reuses its buffers: a micro-batch of a window was overwritten while the others were "
                "fetched; yield a copy of each batch, for example with .clone() or copy.deepcopy()"
            )


def _is_reused(written: Tensor, later: list["Contents"]) -> bool:
    """Whether its own numbers were overwritten, and not only others of the storage it shares."""
    if written.layout is not torch.strided or written.untyped_storage().nbytes() == written.nbytes:
        return True
    others = [tensor for contents in later for tensor, _ in contents.tensors if tensor.layout is torch.strided]
    return any(tensor.data_ptr() == written.data_ptr() for tensor in others)


class Contents(pickle.Pickler):
    """What pickle sees of a batch: tensors with their versions, and a checksum of the rest."""

    def __init__(self, batch: Any):
        self.tensors: list[tuple[Tensor, int]] = []
        parts = batch if type(batch) in (tuple, list) else (batch,)
        if all(type(part) is Tensor for part in parts):  # the commonest batches need no pickle
            self.rest = list(map(self.persistent_id, parts))
            return
        sums = [0]  # instead of a file, which would keep a copy of what is written
        super().__init__(SimpleNamespace(write=lambda part: sums.append(crc32(part, sums.pop()))), protocol=5)
        with suppress(Exception):  # nested too deeply: it is seen as far as pickle got
            self.dump(batch)
        (self.rest,) = sums

    def persistent_id(self, part: Any) -> Any:
        if isinstance(part, Tensor):
            self.tensors.append((part, _version(part)))
            return id(part), _checksum(part)
        return type(part).__name__ if isinstance(part, _NOT_DATA) else None

    def reducer_override(self, part: Any) -> Any:
        try:
            return part.__reduce_ex__(5)
        except Exception:  # a lock or a generator: the rest of the batch is seen
            return str, (type(part).__name__,)

    def written(self) -> list[Tensor]:
        """The tensors that PyTorch has written to since."""
        return [tensor for tensor, version in self.tensors if _version(tensor) != version]

    def differ(self, batch: Any) -> bool:
        """Whether the rest has changed, and isn't another one whenever it is looked at."""
        now = Contents(batch)
        return now.rest != self.rest and now.rest == Contents(batch).rest


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _checksum(tensor: Tensor) -> int | None:
    """Of memory that NumPy can write to without a new version: its storage can't be resized."""
    if tensor.layout is not torch.strided or (tensor.untyped_storage().resizable() and not tensor.is_inference()):
        return None
    if tensor.device.type != "cpu" or tensor.is_shared():
        return None
    return crc32(tensor.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8).numpy())


def _tensors(batch: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors of a batch, each with its path: an "s" per sequence it is in, "m" per mapping."""
    if isinstance(batch, Tensor):
        yield path, batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from _tensors(part, path + "m")
    elif isinstance(batch, (tuple, list)):
        for part in batch:
            yield from _tensors(part, path + "s")


def items(batch: Any) -> int:
    """Counts the samples of a batch-first micro-batch: the first dimension of all its tensors.

    Where all first dimensions agree, a sequence-first batch can't be told from a batch-first one,
    nor a list of samples of one shape from a list of fields: by convention that dimension is the
    batch. If it isn't, pass `weight=` to the loop.

    Args:
        batch: A tensor, or a tuple, list or mapping of tensors. Entries that hold no tensor are
            ignored. What is nested more deeply must agree, too, but can't be counted on its own: it
            could be a list of samples.

    Raises:
        TypeError: If the first dimensions differ; if all tensors are in dicts or lists inside a
            list or tuple, such as `(dict, dict)`; or of a `PackedSequence`, which has no such
            dimension.

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
    loss_fn: Callable[[nn.Module, Any], Tensor | Sequence[Tensor]],
    weight: Callable[[Any], float | Sequence[float]] = items,
    *,
    scaler: GradScaler | None = None,
    autocast: AbstractContextManager | None = None,
    hold_back: bool = False,
) -> Tensor | None:
    """Adds the gradient of a window's mean loss to `.grad`, for training loops of your own.

    The gradient is that of one large batch with everything the window holds, however unequal its
    micro-batches are. It doesn't zero gradients, unscale them or step: zero them before the next
    window, and unscale them if you pass a scaler.

    A DDP or FSDP2 model gets the gradient over what all ranks hold; DDP exchanges it once. All
    ranks call this equally often: one that has run out of batches passes an empty window, until
    nobody has anything and all get None.

    Args:
        model: The model, also wrapped in DDP or FSDP2, also compiled.
        window: The micro-batches of one update, such as a list from `windows`.
        loss_fn: `loss_fn(model, batch)` returns the mean loss of a micro-batch, a scalar tensor; or
            several of them, for several counts from `weight`, as in `train_epoch`.
        weight: `weight(batch)` returns over how many samples or tokens that mean was taken; a
            micro-batch with 0 is left out. By default, `items`.
        scaler: The GradScaler that multiplies the losses, for float16.
        autocast: The context for the forward pass, such as `torch.autocast("cuda",
            torch.bfloat16)`.
        hold_back: Under FSDP2, reduce the gradients once a window, as in `train_epoch`.

    Returns:
        The mean loss of the window over all ranks, a scalar tensor on the model's device in float32
        or wider, without a graph and without the scaler's factor; None if the window holds nothing,
        on any rank.

    Raises:
        TypeError: If an argument, a weight or a loss has the wrong type.
        ValueError: If a weight or a loss has an unusable value, if the ranks cannot go through this
            window together, or if DDP has not averaged its gradients. An error after a backward
            pass empties the model's gradients.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> for window in windows([torch.ones(3, 2), torch.ones(1, 2)], 2):
        ...     loss = backward_window(model, window, lambda model, x: model(x).mean())
        ...     optimizer.step()
        ...     optimizer.zero_grad()
    """
    check_options(weight, scaler, autocast)
    parallel = adapter_of(model, hold_back=hold_back)
    window = list(window)
    if weight is items:
        warn_of_padding(window)
    window = share_out(parallel, window, weight)
    if not window.holds_any:
        return None
    loss = accumulate(parallel, window, loss_fn, scaler, autocast)
    if parallel.world_size > 1:
        (total,) = parallel.all_reduce([float(loss)])
        # The same on every rank.
        dtype = torch.promote_types(next(model.parameters()).dtype, torch.float32)
        loss = torch.tensor(total / parallel.world_size, dtype=dtype, device=parallel.device)
    return loss


def check_options(weight: Any, scaler: Any, autocast: Any) -> None:
    if not callable(weight):
        raise TypeError(f"weight must be a function of one batch, got {shown(weight)}")
    if not isinstance(autocast, (AbstractContextManager, NoneType)) or isinstance(autocast, _ONE_SHOT):
        raise TypeError(
            "autocast must be a context that can be entered for every micro-batch, such as torch.autocast(...), got "
            f"{shown(autocast)}"
        )
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise TypeError(f"scaler must be a GradScaler, got {shown(scaler)}")


class Window(NamedTuple):
    """A window of this rank, and what all ranks hold of it together."""

    # Micro-batches, each with the shares of its losses in the means over all ranks.
    shares: list[tuple[Any, list[float]]]
    holds_any: bool  # whether any rank holds samples or tokens
    everyone: bool  # whether every rank has something to run
    going: bool  # whether any rank has a window left


def rounds(parallel: Adapter, given: Iterator[list], weight: Callable[[Any], Any]) -> Iterator[Window]:
    """The windows of this rank until no rank has one left, without those that are empty on all."""
    fetched = next(given, [])
    if weight is items:
        warn_of_padding(fetched, stacklevel=4)
    while (window := share_out(parallel, fetched, weight)).going:
        if window.holds_any:
            yield window
        window.shares.clear()  # not to hold its inputs while the next ones are fetched
        del fetched
        fetched = next(given, [])


def share_out(parallel: Adapter, window: list, weight: Callable[[Any], Any]) -> Window:
    """Gives each micro-batch its share of the mean over all ranks. Weight 0 is left out."""
    counts = counts_of(window, weight)
    held = [(batch, own) for batch, own in zip(window, counts, strict=True) if any(own)]
    sums = [sum(column) for column in zip(*counts, strict=True)]
    totals, everyone, going = parallel.agree(sums, len(held), bool(counts))
    if not isfinite(sum(totals)):
        raise ValueError(f"the weights of a window must have a finite sum, got {sum(totals)}")

    def share(count: float, total: float) -> float:
        # Gradients are averaged over the ranks, which divides them by their number.
        return parallel.world_size * count / total if count else 0.0

    shares = [(batch, list(map(share, own, totals))) for batch, own in held]
    return Window(shares, any(totals), everyone, going)


def counts_of(window: list, weight: Callable[[Any], Any]) -> list[tuple[float, ...]]:
    """The weight of each micro-batch: checked numbers of samples or tokens, one for each loss.

    Example:
        >>> counts_of([torch.zeros(3), torch.zeros(1)], items)
        [(3,), (1,)]
    """
    counts = [weight(batch) for batch in window]
    counts = [tuple(own) if isinstance(own, (tuple, list)) else (own,) for own in counts]
    losses = {len(own) for own in counts}
    if len(losses) > 1 or 0 in losses:
        raise ValueError(f"weight(batch) must return equally many counts for every batch, got {sorted(losses)}")
    numbers = iter(check_weights([count for own in counts for count in own]))
    return [tuple(next(numbers) for _ in own) for own in counts]


def check_weights(weights: list) -> list[float]:
    weights = read(weights)
    for count in weights:
        if not isinstance(count, (int, float, Real)):
            raise TypeError(f"weight(batch) must be a number, got {shown(count)}")
        if not 0 <= count < inf:  # nor NaN
            raise ValueError(f"weight(batch) must be a number of items or tokens, 0 or more, got {count}")
    return weights


def warn_of_padding(window: list, stacklevel: int = 3) -> None:
    """Warns where padded tokens are about to be counted as samples."""
    for batch in window:
        for _, tensor in _tensors(batch):
            if (tensor.dtype, tensor.layout) == (torch.int64, torch.strided) and (tensor == _IGNORED).any():
                warnings.warn(
                    f"a micro-batch holds integers of {_IGNORED}, which cross_entropy leaves out of its mean, and is "
                    "counted by its samples: if they are targets, count tokens, as with "
                    f'weight=lambda batch: (batch["labels"] != {_IGNORED}).sum()',
                    UserWarning,
                    stacklevel=stacklevel,
                )
                return


def read(values: list) -> list:
    """The values of scalar tensors, with one wait for their device; all else as it is.

    Example:
        >>> read([torch.tensor(0.5), 2, torch.tensor(1.5)])
        [0.5, 2, 1.5]
    """
    values = list(values)
    indices = [k for k, value in enumerate(values) if isinstance(value, Tensor) and value.dim() == 0]
    if indices:
        scalars = torch.stack([values[k].to(values[indices[0]].device) for k in indices])
        for k, value in zip(indices, scalars.tolist(), strict=True):
            values[k] = value
    return values


def accumulate(
    parallel: Adapter, window: Window, loss_fn: Callable, scaler: GradScaler | None, autocast: Any
) -> Tensor | float:
    """Runs a window, whose gradients are then in `.grad`, and returns this rank's part of the loss.

    The part counts `world_size` times, as the gradients do before they are averaged.
    """
    model = parallel.model if window.everyone else parallel.local_model
    window_loss, began = 0.0, False
    try:
        for k, (batch, shares) in enumerate(window.shares, start=1):
            with parallel.gradient_sync(window.everyone and k == len(window.shares)):
                loss = _forward(model, batch, shares, loss_fn, autocast or nullcontext())
                began = True
                (scaler.scale(loss) if scaler else loss).backward()
            # A sum in 16 bits would lose what is small.
            window_loss += loss.detach().to(torch.promote_types(loss.dtype, torch.float32))
        torch.clear_autocast_cache()  # for a forward pass after the update
        if window.everyone:
            parallel.check_gradients()
    except BaseException:
        parallel.abandon_window()
        if began:
            parallel.model.zero_grad()  # half a window
        raise
    if not window.everyone:
        parallel.average_gradients()
        if scaler:
            scaler.scale(next(model.parameters()).detach())  # its scale comes with its first use
    return window_loss


def _forward(
    model: nn.Module, batch: Any, shares: list[float], loss_fn: Callable, autocast: AbstractContextManager
) -> Tensor:
    # An autocast that is open around the loop keeps copies from before the last update.
    torch.clear_autocast_cache()
    with autocast:
        losses = loss_fn(model, batch)
        losses = losses if isinstance(losses, (tuple, list)) else [losses]
        if len(losses) != len(shares):
            of = f"{len(losses)} for {len(shares)}"
            raise TypeError(f"loss_fn must return one mean loss for each count of weight(batch), got {of}")
        # Without a count there is no mean: its loss may be NaN.
        return reduce(add, [_checked(loss) * share for loss, share in zip(losses, shares, strict=True) if share])


def _checked(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor):
        its = ".loss" if hasattr(loss, "loss") else '["loss"]' if isinstance(loss, dict) and "loss" in loss else ""
        raise TypeError(f"loss_fn must return a scalar tensor, got {shown(loss)}" + f": return its {its}" * bool(its))
    if loss.dim() or not loss.requires_grad:
        raise ValueError(
            f"loss_fn must return a scalar tensor with a graph, got one of shape {tuple(loss.shape)}, "
            f"requires_grad={loss.requires_grad}"
        )
    return loss
