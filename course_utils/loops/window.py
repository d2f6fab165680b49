"""The window: which micro-batches make one update, and the gradient of their mean loss."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from math import inf, isfinite
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from course_utils.loops.parallel import Adapter, adapter_of

_ONE_SHOT = type(contextmanager(lambda: iter([None]))())


def windows(batches: Iterable, n: int) -> Iterator[list]:
    """Groups micro-batches into windows: lists of `n`, the last one shorter if `n` does not divide their number.

    A whole window is fetched before it is handed out, so that the loop knows what the window holds. The price is that
    the inputs of `n` micro-batches are in memory at once, and that each must have memory of its own: a loader that
    writes every batch into the same buffer would leave `n` copies of the last one.

    Args:
        batches: Any iterable of micro-batches, with or without a length.
        n: Micro-batches per update.

    Returns:
        An iterator over lists of micro-batches.

    Raises:
        TypeError: If `n` is not an integer (at the call).
        ValueError: If `n` is below 1 (at the call), or if PyTorch has overwritten the first tensor of a window while
            the rest of that window was fetched. Writes that PyTorch doesn't count, such as NumPy's, go unnoticed.

    Example:
        >>> [len(window) for window in windows(range(10), 4)]
        [4, 4, 2]
    """
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"n must be a whole number of micro-batches, got {n!r} ({type(n).__name__})")
    if n < 1:
        raise ValueError(f"n must be at least 1 micro-batch per window, got {n}")
    return _fetch(iter(batches), n)


def _fetch(batches: Iterator, n: int) -> Iterator[list]:
    for first in batches:
        tensor = _first_tensor(first)
        version = _version(tensor)
        window = [first, *islice(batches, n - 1)]
        # Only a batch at the same address was written over: a write elsewhere in a shared storage is no concern.
        if _version(tensor) != version and any(
            other is not None and other.data_ptr() == tensor.data_ptr() for other in map(_first_tensor, window[1:])
        ):
            raise ValueError(
                "the loader reuses its buffers: the first micro-batch of a window was overwritten while the others "
                "were fetched; yield a copy of each batch, for example with .clone()"
            )
        yield window


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None or tensor.is_inference() else tensor._version


def _first_tensor(batch: Any) -> Tensor | None:
    while isinstance(batch, (tuple, list, dict)) and batch:
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return batch if isinstance(batch, Tensor) else None


def items(batch: Any) -> int:
    """Counts the samples of a micro-batch: the length of a tensor, or of the first entry of a tuple, list or dict.

    Example:
        >>> items((torch.zeros(8, 64), torch.zeros(8)))
        8
    """
    tensor = _first_tensor(batch)
    if tensor is None or tensor.dim() == 0:
        raise TypeError(f"cannot count the items of a {type(batch).__name__}: pass weight=, a function of one batch")
    return len(tensor)


def backward_window(
    model: nn.Module,
    window: Iterable,
    loss_fn: Callable[[nn.Module, Any], Tensor],
    weight: Callable[[Any], float] = items,
    *,
    scaler: GradScaler | None = None,
    autocast: AbstractContextManager | None = None,
) -> Tensor | None:
    """Adds the gradient of a window's mean loss to `.grad`, for training loops of your own.

    The gradient is that of one large batch with everything the window holds, however unequal its micro-batches are. It
    doesn't zero gradients, unscale them or step: zero them before the next window, and unscale them if you pass a
    scaler.

    A DDP or FSDP2 model gets the gradient over what all ranks hold, and exchanges it once. All ranks call this equally
    often: one that has run out of batches passes an empty window, until nobody has anything and all get None.

    Args:
        model: The model, also wrapped in DDP or FSDP2, also compiled.
        window: The micro-batches of one update, such as a list from `windows`.
        loss_fn: `loss_fn(model, batch)` returns the mean loss of a micro-batch, a scalar tensor.
        weight: `weight(batch)` returns over how many samples or tokens that mean was taken; a micro-batch with 0 is
            left out. By default, `items`.
        scaler: The GradScaler that multiplies the losses, for float16.
        autocast: The context for the forward pass, such as `torch.autocast("cuda", torch.bfloat16)`.

    Returns:
        The mean loss of the window over all ranks, without a graph and without the scaler's factor; None if the window
        holds nothing, on any rank.

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
    parallel = adapter_of(model)
    window = share_out(parallel, list(window), weight)
    if not window.total:
        return None
    loss = accumulate(parallel, window, loss_fn, scaler, autocast)
    if parallel.world_size > 1:
        loss = torch.tensor(parallel.all_reduce_sum([float(loss)])[0] / parallel.world_size)
    return loss


def check_window_options(weight: Any, scaler: Any, autocast: Any) -> None:
    if not callable(weight):
        raise TypeError(f"weight must be a function of one batch, got {weight!r} ({type(weight).__name__})")
    if autocast is not None and not isinstance(autocast, AbstractContextManager):
        raise TypeError(f"autocast must be a context manager, got {autocast!r} ({type(autocast).__name__})")
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise TypeError(f"scaler must be a GradScaler, got {scaler!r} ({type(scaler).__name__})")
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
    weights = [weight(batch) for batch in window]
    tensors = sum(isinstance(count, Tensor) for count in weights)
    if tensors == len(weights) > 0:
        weights = torch.stack(weights).tolist()  # one synchronisation, not one per micro-batch
    elif tensors:
        weights = [count.tolist() if isinstance(count, Tensor) else count for count in weights]
    for count in weights:
        if not isinstance(count, (int, float, Real)):
            raise TypeError(f"weight(batch) must be a number, got {count!r} ({type(count).__name__})")
        if not 0 <= count < inf:  # nor NaN
            raise ValueError(f"weight(batch) must be a number of items or tokens, 0 or more, got {count}")
    return weights


def accumulate(
    parallel: Adapter, window: Window, loss_fn: Callable, scaler: GradScaler | None, autocast: Any
) -> Tensor | float:
    """Runs a window: its gradients are then in `.grad`, averaged over the ranks. Returns this rank's part of the loss.

    The part counts `world_size` times, as the gradients do before they are averaged.
    """
    model = parallel.model if window.everyone else parallel.local_model
    autocast = autocast or nullcontext()
    window_loss = 0.0
    for k, (batch, share) in enumerate(window.shares, start=1):
        with parallel.gradient_sync(k == len(window.shares)):
            loss = _forward(model, batch, share, loss_fn, autocast)
            _backward(loss, scaler)
        window_loss += loss.detach()
    if not window.everyone:
        parallel.average_gradients()
        if scaler:
            scaler.scale(next(model.parameters()).detach())  # a scaler has no scale before its first use
    return window_loss


def _forward(model: nn.Module, batch: Any, share: float, loss_fn: Callable, autocast: Any) -> Tensor:
    with autocast:
        loss = loss_fn(model, batch)
        if not isinstance(loss, Tensor):
            raise TypeError(f"loss_fn must return a scalar tensor, got {loss!r} ({type(loss).__name__})")
        if loss.dim() or not loss.requires_grad:
            raise ValueError(
                f"loss_fn must return a scalar tensor with a graph, got one of shape {tuple(loss.shape)}, "
                f"requires_grad={loss.requires_grad}"
            )
        return loss * share


def _backward(loss: Tensor, scaler: GradScaler | None) -> None:
    (scaler.scale(loss) if scaler else loss).backward()
