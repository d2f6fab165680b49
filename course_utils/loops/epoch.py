"""Gradient accumulation, exact: the window, the training loop and the evaluation loop."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from course_utils.loops.parallel import Alone, ranks_of

_NOTHING = (
    "batches gave nothing: an empty loader, a generator that is used up, or weight(batch) 0 for every micro-batch?"
)


def windows(batches: Iterable, n: int) -> Iterator[list]:
    """Groups micro-batches into windows: lists of `n`, the last one shorter if `n` does not divide their number.

    **Arguments:** `batches`: any iterable of micro-batches, with or without a length; `n`: micro-batches per update.

    **Returns:** an iterator over lists. It fetches a whole window before it gives it, so that the loop knows what
    the window holds; the price is the inputs of `n` micro-batches in memory.

    **Raises:** `TypeError` if `n` is not an integer, `ValueError` if it is below 1; both at the call.

    >>> [len(window) for window in windows(range(10), 4)]
    [4, 4, 2]
    """
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"n must be a whole number of micro-batches, got {n!r} ({type(n).__name__})")
    if n < 1:
        raise ValueError(f"n must be at least 1 micro-batch per window, got {n}")
    iterator = iter(batches)
    return iter(lambda: list(islice(iterator, n)), [])


def items(batch: Any) -> int:
    """How many items a micro-batch holds: the length of a tensor, or of the first entry of a tuple, list or dict.

    >>> items((torch.zeros(8, 64), torch.zeros(8)))
    8
    """
    while isinstance(batch, (tuple, list, dict)) and batch:
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    if not isinstance(batch, Tensor) or batch.dim() == 0:
        raise TypeError(f"cannot count the items of a {type(batch).__name__}: pass weight=, a function of one batch")
    return len(batch)


def train_epoch(
    model: nn.Module,
    batches: Iterable,
    loss_fn: Callable[[nn.Module, Any], Tensor],
    optimizer: Optimizer,
    n: int = 1,
    weight: Callable[[Any], float] = items,
    *,
    autocast: AbstractContextManager | None = None,
    scaler: GradScaler | None = None,
    max_norm: float | None = None,
    scheduler: LRScheduler | None = None,
) -> list[float]:
    """Trains for one pass over `batches`, with one update per window of `n` micro-batches.

    Each update uses the gradient of the mean loss over all that its window holds: the gradient that one large batch
    would have, also when micro-batches differ in size and when the last window is short. Within a window come, once
    and in this order: unscale, clip, step, update of the scale, step of the schedule, zeroing. The model is trained
    in the mode in which it comes, so that a part that was put into evaluation mode stays there.

    A model wrapped by DDP or FSDP2 learns from the windows of all ranks as from one: the mean is over what they hold
    together, also when ranks hold unequally much or have run out. Gradients are exchanged once per window, and one
    small message adds up the weights. FSDP2 needs equally many micro-batches on every rank.

    **Arguments:** `batches`: micro-batches of any kind (wrap them in `tqdm` to see progress); `loss_fn(model, batch)`:
    the *mean* loss of a micro-batch, a scalar tensor; `n`: micro-batches per update; `weight(batch)`: how many items
    or tokens that mean was taken over (what holds none, a micro-batch or a window, is left out); `autocast`: the
    context of the forward, such as `torch.autocast("cuda", torch.bfloat16)`; `scaler`: for float16, made once for the
    whole training; `max_norm`: the largest norm that a window's gradient may have, all parameters of the optimizer
    together; `scheduler`: stepped once per update, and not where the scaler skips one, so its lengths count updates.

    **Returns:** the mean loss of each window that holds anything, before its update, without the scaler's factor; on
    several ranks that of all ranks.

    **Raises:** `TypeError` or `ValueError`, before anything changes, if an argument cannot be used or if `batches`
    gives nothing; before its window changes anything, if a weight cannot be used, or if ranks with FSDP2 hold unequal
    numbers of micro-batches. Gradients that were there before the call, or that an error left behind, never enter an
    update.

    >>> model = nn.Linear(2, 1)
    >>> data = [(torch.ones(3, 2), torch.ones(3, 1)), (torch.ones(1, 2), torch.ones(1, 1))]
    >>> mse = lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1])
    >>> len(train_epoch(model, data, mse, torch.optim.SGD(model.parameters(), lr=0.1), n=2))
    1
    """
    _check(autocast, scaler, max_norm, scheduler)
    autocast = autocast or nullcontext()
    scaler = scaler or GradScaler(enabled=False)  # one that is switched off passes everything through
    ranks = ranks_of(model)
    losses = []
    for window, everyone in _rounds(ranks, windows(batches, n), weight):
        if not losses:
            optimizer.zero_grad()
        window_loss = 0.0
        reached = model if everyone else ranks.local
        for k, (batch, share) in enumerate(window, start=1):
            with ranks.micro_batch(last=k == len(window)):
                with autocast:
                    loss = loss_fn(reached, batch) * share
                scaler.scale(loss).backward()
            window_loss += loss.detach()
        if not everyone:
            ranks.average()
            scaler.scale(next(model.parameters()).detach())  # a scaler has no scale before its first use
        if _update(optimizer, scaler, max_norm) and scheduler:
            scheduler.step()
        optimizer.zero_grad()
        losses.append(window_loss)
    if not losses:
        raise ValueError(_NOTHING)
    return [loss / ranks.world for loss in ranks.add_up([float(loss) for loss in losses])]


def _rounds(ranks: Alone, given: Iterator[list], weight: Callable) -> Iterator[tuple[list, bool]]:
    """Windows as pairs (micro-batch, its share of the mean over all ranks), and whether every rank holds something.

    What holds nothing is left out. A rank whose windows have ended goes on with empty ones until all ranks are done.
    A share is multiplied by the number of ranks, since the gradients are averaged over them.
    """
    while True:
        window = next(given, [])
        held = [(batch, count) for batch, count in zip(window, counts(window, weight), strict=True) if count]
        ranks.compare(len(held))
        mine = [sum(count for _, count in held), bool(held), bool(window)]
        total, holding, going = ranks.add_up(mine)
        if not going:
            return
        if total:
            yield [(batch, ranks.world * count / total) for batch, count in held], holding == ranks.world


def _update(optimizer: Optimizer, scaler: GradScaler, max_norm: float | None) -> bool:
    """One update with the gradients of a whole window. False if the scaler found an infinity and left the step out."""
    scaler.unscale_(optimizer)
    try:
        if max_norm is not None:
            nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], max_norm)
        scaler.step(optimizer)
    finally:  # also after an interrupt, for a scaler that has unscaled and not updated refuses its next window
        scale = scaler.get_scale()
        scaler.update()
    return scaler.get_scale() >= scale  # it falls where a gradient held an infinity or a nan


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable,
    metric: Callable[[nn.Module, Any], Tensor],
    weight: Callable[[Any], float] = items,
) -> float:
    """The mean of `metric(model, batch)` over all items of `batches`, in evaluation mode and without a graph.

    **Arguments:** `metric(model, batch)`: a scalar mean over the micro-batch, such as a loss or an accuracy;
    `weight(batch)`: how many items that mean was taken over.

    **Returns:** the mean per item, whatever the sizes of the micro-batches; of a DDP or FSDP2 model, that over what all
    ranks hold. The mode of the model and of each of its parts is as before, also after an error.

    **Raises:** `ValueError` if `batches` gives nothing.

    >>> evaluate(nn.Identity(), [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([6.0])], lambda model, x: x.mean())
    3.0
    """
    ranks = ranks_of(model)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    total, seen = 0.0, 0
    try:
        for batch in batches:
            (count,) = counts([batch], weight)
            if count:
                total += float(metric(ranks.local, batch)) * count
                seen += count
    finally:
        for module, was_training in modes:
            module.training = was_training
    total, seen = ranks.add_up([total, seen])
    if not seen:
        raise ValueError(_NOTHING)
    return total / seen


def counts(window: list, weight: Callable[[Any], float]) -> list[float]:
    """How many items or tokens each micro-batch of a window holds; `ValueError` for what is no such number.

    >>> counts([torch.zeros(3), torch.zeros(1)], items)
    [3.0, 1.0]
    """
    held = [float(weight(batch)) for batch in window]
    for count in held:
        if not (isfinite(count) and count >= 0):
            raise ValueError(f"weight(batch) must be a number of items or tokens, 0 or more, got {count}")
    return held


def _check(autocast: Any, scaler: Any, max_norm: float | None, scheduler: LRScheduler | None) -> None:
    for name, value, kind in (("autocast", autocast, AbstractContextManager), ("scaler", scaler, GradScaler)):
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, got {value!r} ({type(value).__name__})")
    if max_norm is not None and not max_norm > 0:
        raise ValueError(f"max_norm must be a positive number, got {max_norm}")
    if isinstance(scheduler, ReduceLROnPlateau):
        raise TypeError("ReduceLROnPlateau needs a metric at each step: call its step(metric) after evaluate()")
