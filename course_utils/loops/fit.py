"""A window that survives running out of memory: the same update from smaller micro-batches. Needs torch alone."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from course_utils.loops import counts, items


def pieces(batch: Any, size: int) -> list:
    """Cuts a micro-batch of tensors, alone or in a tuple, list or dict, into micro-batches of up to `size` items.

    >>> [len(x) for x, y in pieces((torch.zeros(5, 3), torch.zeros(5)), 2)]
    [2, 2, 1]
    """
    if isinstance(batch, Tensor):
        return list(batch.split(size))
    if isinstance(batch, dict):
        return [dict(zip(batch, parts, strict=True)) for parts in pieces(tuple(batch.values()), size)]
    if isinstance(batch, (tuple, list)) and len({items(part) for part in batch}) == 1:
        return [type(batch)(parts) for parts in zip(*(pieces(part, size) for part in batch), strict=True)]
    raise TypeError(f"cannot cut a {type(batch).__name__} into items: pass split=, a function of a batch and a size")


class Fit:
    """Finds, while training, the largest micro-batch that fits, and keeps each update as it is.

    A forward or a backward that runs out of memory leaves half a window behind. `backward` throws its gradients away,
    halves the micro-batch and runs the window again from its beginning, with the same items and so with the same
    gradient. Optimizer and scaler have then seen nothing of it, and random numbers are drawn as if nothing had
    happened. Later windows start with what was found.

    What depends on the micro-batch itself changes with it: BatchNorm normalises over fewer items, and its running
    averages keep the half window that was thrown away; dropout draws other masks. Only `torch.OutOfMemoryError`, as a
    GPU raises it, is survived, on one process: ranks would have to agree on the micro-batch.

    **Arguments:** `micro_batch`: the most items to try at first; None takes the micro-batches as they come.

    >>> model, fit = nn.Linear(2, 1), Fit(micro_batch=2)
    >>> loss = fit.backward(model, [torch.ones(3, 2), torch.ones(1, 2)], lambda model, x: model(x).mean())
    >>> model.bias.grad, fit.micro_batch, fit.failures
    (tensor([1.]), 2, 0)
    """

    def __init__(self, micro_batch: int | None = None):
        if micro_batch is not None and not micro_batch >= 1:
            raise ValueError(f"micro_batch must be at least 1 item, got {micro_batch}")
        self.micro_batch = micro_batch
        self.failures = 0

    def backward(
        self,
        model: nn.Module,
        window: Iterable,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        weight: Callable[[Any], float] = items,
        *,
        split: Callable[[Any, int], list] = pieces,
        autocast: AbstractContextManager | None = None,
        scaler: GradScaler | None = None,
    ) -> Tensor:
        """Puts the gradient of the mean loss over the whole window into `.grad`, in place of what was there.

        **Arguments:** `window`: its micro-batches, a list of `windows()` or one large batch in a list; `loss_fn`,
        `weight`, `autocast` and `scaler`: as for `train_epoch`; `split(batch, size)`: cuts a micro-batch.

        **Returns:** the mean loss of the window, without a graph and without the scaler's factor.

        **Raises:** `torch.OutOfMemoryError` if one item does not fit. The gradients are then empty.
        """
        window = list(window)
        generators = _random_states()
        while True:
            parts = window
            if self.micro_batch is not None:
                parts = [part for batch in window for part in split(batch, self.micro_batch)]
            try:
                return _backward(model, parts, loss_fn, weight, autocast or nullcontext(), scaler)
            except torch.OutOfMemoryError as error:
                reason = str(error)
            # Not inside the except: while an error is handled, its traceback keeps the activations that did not fit.
            model.zero_grad()
            _restore(generators)
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
            tried = max(len(split(part, 1)) for part in parts)
            if tried == 1:
                raise torch.OutOfMemoryError(
                    f"a micro-batch of one item does not fit, and no window can be cut finer: use a smaller model, "
                    f"checkpointing or a smaller type ({reason})"
                )
            self.micro_batch = tried // 2
            self.failures += 1


def _backward(model, window, loss_fn, weight, autocast, scaler) -> Tensor:
    model.zero_grad()
    held = counts(window, weight)
    window_loss = torch.zeros(())
    for batch, count in zip(window, held, strict=True):
        if count:
            with autocast:
                loss = loss_fn(model, batch) * (count / sum(held))
            (scaler.scale(loss) if scaler else loss).backward()
            window_loss = window_loss.to(loss) + loss.detach()
    return window_loss


def _random_states() -> tuple[Tensor, list[Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def _restore(states: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(states[0])
    if states[1]:
        torch.cuda.set_rng_state_all(states[1])
