"""The training loop, in which each window makes one exact update, and the evaluation loop."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from math import isfinite
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves

from course_utils.loops.parallel import Adapter, adapter_of
from course_utils.loops.window import accumulate, check_options, check_weights, items, read, rounds, shown, windows
from gradaudit.interrupts import uninterrupted

_EMPTY = "batches gave nothing: an empty loader, a generator that is used up, or weight(batch) 0 for every micro-batch?"


class Update(NamedTuple):
    """What `train_epoch` tells `on_update` about a window, after its update.

    Example:
        >>> def log(update):
        ...     print(f"update {update.number}: loss {update.loss}, lr {update.lr[0]}")
        >>> log(Update(number=1, micro_batches=4, loss=0.5, norm=2.0, lr=[0.1], skipped=False))
        update 1: loss 0.5, lr 0.1
    """

    number: int  # of the window in this epoch, from 1
    micro_batches: int  # that this rank ran in the window
    loss: float  # the mean over the window and all ranks, before the update
    norm: float  # of the optimizer's gradients over all ranks, unscaled, before clipping
    lr: list[float | None]  # of each parameter group, as the update used it; None where it has none
    skipped: bool  # the norm was infinite or NaN


def train_epoch(
    model: nn.Module,
    batches: Iterable,
    loss_fn: Callable[[nn.Module, Any], Tensor | Sequence[Tensor]],
    optimizer: Optimizer,
    n: int = 1,
    weight: Callable[[Any], float | Sequence[float]] = items,
    *,
    autocast: AbstractContextManager | None = None,
    scaler: GradScaler | None = None,
    max_norm: float | None = None,
    scheduler: LRScheduler | None = None,
    on_update: Callable[[Update], object] | None = None,
    hold_back: bool = False,
) -> list[float]:
    """Trains for one pass over `batches`, with one update per window of `n` micro-batches.

    Each update uses the gradient of one large batch: of the mean loss over everything in its
    window, also if micro-batches differ in size and if the last window is short. Once per window,
    in this order, come unscaling, clipping, the optimizer step, the scale's update, the scheduler
    step and zeroing. A gradient that holds an infinity or a NaN makes no update and no scheduler
    step. Ctrl-C waits until an update that has begun is whole.

    All gradients of the model and the optimizer are zeroed before the first window and after every
    update. An optimizer that holds others, as a Muon holds an AdamW, is treated as one with them. A
    model wrapped in DDP or FSDP2 trains on the windows of all ranks as if they were one.
    `docs/loop.md` says how exact that is, and what ranks need; notebook 07 lists what breaks it.

    Args:
        model: The model, also wrapped in DDP or FSDP2, also compiled. Keeps its mode.
        batches: Micro-batches of any kind, with memory of their own (see `windows`).
        loss_fn: `loss_fn(model, batch)` returns the mean loss of a micro-batch, a scalar tensor; or
            several means, such as over tokens and over samples, of which the sum is minimised.
        optimizer: Any optimizer that steps without a closure, so neither LBFGS nor SAM.
        n: Micro-batches per update.
        weight: `weight(batch)` returns over how many samples or tokens that mean was taken; for
            several losses, a count for each. A micro-batch with 0 is left out. By default, `items`:
            the first dimension, in which all tensors must agree.
        autocast: The context for the forward pass: `torch.autocast("cuda", torch.bfloat16)`.
        scaler: A GradScaler for float16, one for the whole training.
        max_norm: The largest norm that the gradient of a window may have, over all parameters of
            the optimizer.
        scheduler: Stepped once per update, so that its lengths count updates.
        on_update: Called after each window with an `Update`, for a log or a progress bar. The loss
            and the norm are read from the device for it.
        hold_back: Under FSDP2, reduce the gradients once per window and not once per micro-batch;
            until then every rank holds an unreduced gradient of the whole model.

    Returns:
        The mean loss of each window before its update, over all ranks and without the scaler's
        factor.

    Raises:
        TypeError: If an argument, a weight or a loss has the wrong type.
        ValueError: If one has an unusable value, if `batches` gives nothing, if a loss reaches no
            parameter of the optimizer, or if the ranks cannot train this model together or have not
            exchanged its gradients. No error makes a wrong update, or leaves half a window in
            `.grad`.
        FloatingPointError: If every window was skipped, unless a scaler may still find its scale.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> data = [(torch.ones(3, 2), torch.ones(3, 1)), (torch.ones(1, 2), torch.ones(1, 1))]
        >>> mse = lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1])
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> len(train_epoch(model, data, mse, optimizer, n=2))
        1
        >>> with_penalty = lambda model, batch: (mse(model, batch), model.weight.square().sum())
        >>> counts = lambda batch: (items(batch), 1)
        >>> len(train_epoch(model, data, with_penalty, optimizer, n=2, weight=counts))
        1
    """
    parallel = adapter_of(model, hold_back=hold_back)
    check_options(weight, scaler, autocast)
    family = _family(optimizer)
    _check_optimizer(model, optimizer, family, parallel.world_size)
    _check_update_options(optimizer, max_norm, scheduler, on_update)
    if parallel.world_size > 1:
        parallel.compare_options(_options(model, family, scaler, max_norm, scheduler, on_update))
    losses, skipped = [], 0
    for window in rounds(parallel, windows(batches, n), weight):
        try:
            if not losses:
                _zero(model, family)
            losses.append(accumulate(parallel, window, loss_fn, scaler, autocast))
            rates = _rates(optimizer) if on_update else []
            with uninterrupted():
                norm = _update(family, parallel, scaler, max_norm)
                if not isfinite(norm):
                    skipped += 1
                elif scheduler:
                    scheduler.step()
                _zero(model, family)
        except BaseException:  # no half window is left
            _zero(model, family)
            raise
        if on_update:
            loss = parallel.all_reduce(read([losses[-1]]))[0] / parallel.world_size
            on_update(Update(len(losses), len(window.shares), loss, norm, rates, not isfinite(norm)))
    if not losses:
        raise ValueError(_EMPTY)
    losses = [loss / parallel.world_size for loss in parallel.all_reduce(read(losses))]
    said = f"{skipped} of {len(losses)} windows made no update: the norm of their gradients was infinite or NaN"
    if skipped == len(losses) and not (scaler and scaler.get_scale() > 1 and all(map(isfinite, losses))):
        raise FloatingPointError(f"{said}, and the first loss was {losses[0]}")
    if skipped:
        warnings.warn(said, RuntimeWarning, stacklevel=2)
    return losses


def _update(family: list[Optimizer], parallel: Adapter, scaler: GradScaler | None, max_norm: float | None) -> float:
    """Makes one update with the gradient of a whole window, unless it holds an infinity or a NaN.

    Returns:
        The norm of the gradient; not finite if there was no update.
    """
    parameters = [p for p in _parameters(family) if p.grad is not None]
    if not parameters:
        raise ValueError(
            "no parameter of the optimizer has a gradient after the backward passes of this window: the loss reached "
            "none, or a hook has used the gradients and cleared them inside backward(), which leaves none to accumulate"
        )
    try:
        if scaler:
            for optimizer in _owners(family):
                scaler.unscale_(optimizer)
        gradients = [p.grad for p in parameters]
        norm = parallel.norm(gradients)
        # Neither optimizer.step() nor scaler.step() may see an overflow: a fused optimizer would be
        # called all the same, and its first call leaves a momentum buffer that it hasn't written.
        if not isfinite(size := float(norm)):
            norm = parallel.norm_of_large(gradients)
            size = float(norm)
        if isfinite(size):
            if max_norm is not None:
                nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
            _step(family)
        return size
    finally:  # a scaler that has unscaled and not updated refuses its next window
        if scaler:
            scaler.update()


def _step(family: list[Optimizer]) -> None:
    """Steps, and notices where an optimizer that wraps another has declined to."""
    if not family[1:]:  # inside a compiled step, each new hook would be compiled again
        family[0].step()
        return
    stepped = []
    handle = register_optimizer_step_post_hook(lambda one, *_: stepped.append(one))
    try:
        family[0].step()
    finally:
        handle.remove()
    if not stepped:
        raise ValueError(
            f"the step of {type(family[0]).__name__} made no update, as that of a prepared optimizer while its library "
            "accumulates: pass the optimizer that you made"
        )


def _rates(optimizer: Optimizer) -> list[float | None]:
    return [None if group.get("lr") is None else float(group["lr"]) for group in optimizer.param_groups]


def _options(model: nn.Module, family: list, scaler: Any, max_norm: Any, scheduler: Any, on_update: Any) -> dict:
    """What would make the ranks' updates differ if it differed, as numbers."""
    return {
        "on_update": on_update is not None,
        "max_norm": max_norm or 0.0,
        "scheduler": scheduler is not None,
        "scaler": scaler.get_scale() if scaler else 0.0,
        "learning rate": sum(rate or 0.0 for optimizer in family for rate in _rates(optimizer)),
        "model": len(list(model.parameters())),
    }


def _zero(model: nn.Module, family: list[Optimizer]) -> None:
    for optimizer in family:
        optimizer.zero_grad()
    owned = set(_parameters(family))
    for p in model.parameters():
        if p not in owned:  # an optimizer may keep its gradients, as zeros
            p.grad = None


def _family(optimizer: Any) -> list[Any]:
    """The optimizer and those that it holds: one that is wrapped, or the AdamW inside of a Muon."""
    family = [optimizer]
    for one in family:
        for each in tree_leaves(getattr(one, "__dict__", {})):
            if isinstance(each, Optimizer) and each not in family:
                family.append(each)
    return family


def _owners(family: list[Optimizer]) -> list[Optimizer]:
    """Those with parameters of their own: a wrapper and what it wraps share theirs."""
    owners, seen = [], set()
    # The largest first: one may have a part of another's.
    for optimizer in sorted(family, key=lambda one: -len(_parameters([one]))):
        if not seen.issuperset(own := _parameters([optimizer])):
            owners.append(optimizer)
            seen.update(own)
    return owners


def _parameters(family: list[Optimizer]) -> list[Tensor]:
    """The parameters of these optimizers, each once."""
    return list(dict.fromkeys(p for optimizer in family for group in optimizer.param_groups for p in group["params"]))


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable,
    metric: Callable[[nn.Module, Any], Tensor],
    weight: Callable[[Any], float] = items,
) -> float:
    """Averages `metric(model, batch)` over all of `batches`, in evaluation mode, without a graph.

    The model and each of its parts are in their own mode again afterwards, also after an error. A
    part whose `train()` does more than set a flag, such as a LoRA layer that merges its weights for
    evaluation, has it called. Results, and weights that are tensors, are read from the device at
    the end.

    Args:
        model: The model. With DDP or FSDP2, all ranks take part, and all use rank 0's buffers, such
            as BatchNorm's statistics, as its checkpoint would; an unwrapped model is evaluated by
            this rank alone.
        batches: Micro-batches of any kind; FSDP2 needs equally many on every rank.
        metric: `metric(model, batch)` returns a mean over the micro-batch, such as a loss or an
            accuracy.
        weight: `weight(batch)` returns over how many samples or tokens that mean was taken; a
            result with 0 is left out. By default, `items`.

    Returns:
        The mean per sample or token, whatever the sizes of the micro-batches, over all ranks.

    Raises:
        TypeError: If a weight has the wrong type.
        ValueError: If a weight has an unusable value, or if `batches` gives nothing.

    Example:
        >>> batches = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([6.0])]
        >>> evaluate(nn.Identity(), batches, lambda model, x: x.mean())
        3.0
    """
    parallel = adapter_of(model, training=False)
    modes = [(module, module.training) for module in model.modules()]
    results, counts = [], []
    try:
        model.eval()
        torch.clear_autocast_cache()  # copies with a graph, of weights from before an update
        with parallel.evaluation():
            for batch in batches:
                count = weight(batch)
                if isinstance(count, Tensor) or count != 0:
                    counts.append(_kept(count))
                    results.append(_kept(metric(parallel.local_model, batch)))
    finally:
        torch.clear_autocast_cache()  # copies without a graph
        _restore(modes)
    counts = check_weights(counts)
    total = sum(float(result) * count for result, count in zip(read(results), counts, strict=True) if count)
    total, seen = parallel.all_reduce([total, sum(counts)])
    if not seen:
        raise ValueError(_EMPTY)
    return total / seen


def _restore(modes: list[tuple[nn.Module, bool]]) -> None:
    for module, was_training in modes:  # parents first, since train() goes down to their parts
        if module.training != was_training and getattr(module.train, "__func__", None) is not nn.Module.train:
            module.train(was_training)  # its own, which may do more than set the flag
    for module, was_training in modes:
        module.training = was_training


def _kept(value: Any) -> Any:
    """A number, or a copy of a tensor with one: it may be written to before it is read."""
    return value.detach().clone().squeeze() if isinstance(value, Tensor) else value


def _check_optimizer(model: nn.Module, optimizer: Any, family: list[Any], world_size: int) -> None:
    if not isinstance(optimizer, Optimizer) or _needs_closure(optimizer):
        raise TypeError(
            f"optimizer must be one that steps without a closure, got {type(optimizer).__name__}: write a loop with "
            "backward_window where an update may need a window's gradient more than once"
        )
    owned, parameters = set(_parameters(family)), set(model.parameters())
    if owned.isdisjoint(parameters):
        raise ValueError("none of the optimizer's parameters belongs to the model: was it made for another model?")
    if world_size > 1 and owned - parameters:
        raise ValueError("the optimizer owns parameters outside the model, whose gradients the ranks do not exchange")


def _needs_closure(optimizer: Optimizer) -> bool:
    """LBFGS has no default for its closure; SAM has one that it refuses, and steps twice."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return hasattr(optimizer, "first_step") or (closure is not None and closure.default is closure.empty)


def _check_update_options(optimizer: Optimizer, max_norm: Any, scheduler: Any, on_update: Any) -> None:
    if on_update is not None and not callable(on_update):
        raise TypeError(f"on_update must be a function of one Update, got {shown(on_update)}")
    if max_norm is not None:
        if not isinstance(max_norm, Real) or isinstance(max_norm, bool):
            raise TypeError(f"max_norm must be a number, got {shown(max_norm)}")
        if not max_norm > 0:
            raise ValueError(f"max_norm must be a positive number, got {max_norm}")
    if scheduler is not None:
        if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
            rest = "step a ReduceLROnPlateau with its metric after evaluate()"
            raise TypeError(f"scheduler must be an LRScheduler itself, got {shown(scheduler)}; {rest}")
        if scheduler.optimizer.param_groups is not optimizer.param_groups:
            raise ValueError("the scheduler belongs to another optimizer, whose learning rate it would change")
