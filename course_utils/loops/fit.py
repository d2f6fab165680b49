"""Surviving out-of-memory errors: the same update from smaller micro-batches."""

import copy
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from course_utils.loops.parallel import adapter_of
from course_utils.loops.window import Contents, backward_window, items, whole_number
from gradaudit.probes.graphs import leaves


def pieces(batch: Any, size: int) -> list:
    """Splits a batch of tensors, also in a tuple or mapping, into micro-batches of up to `size`.

    Args:
        batch: A tensor, or a (named) tuple, list or mapping of tensors of one length; an entry may
            be None.
        size: Samples in each micro-batch, at most.

    Raises:
        TypeError: If the batch is of another kind, or its tensors' lengths differ.

    Example:
        >>> [len(x) for x, y in pieces((torch.zeros(5, 3), torch.zeros(5)), 2)]
        [2, 2, 1]
    """
    if isinstance(batch, Tensor):
        return list(batch.split(size))
    if isinstance(batch, MutableMapping):
        return [_with_values(batch, parts) for parts in pieces(tuple(batch.values()), size)]
    if isinstance(batch, (tuple, list)):
        lengths = {items(part) for part in batch if part is not None and pieces(part, size)}
        if len(lengths) == 1:
            count = -(-lengths.pop() // size)
            parts = [[None] * count if part is None else pieces(part, size) for part in batch]
            return [getattr(batch, "_make", type(batch))(each) for each in zip(*parts, strict=True)]
    raise TypeError(f"cannot split a {type(batch).__name__}: pass split=, a function of a batch and a size")


def _with_values(batch: MutableMapping, values: tuple) -> MutableMapping:
    part = copy.copy(batch)  # of its own class, with what it has beside its entries
    part.update(zip(batch, values, strict=True))
    return part


class MicroBatchFinder:
    """Finds the largest micro-batch that fits while training, without changing any update.

    A forward or backward pass that runs out of memory leaves half a window behind.
    `backward_window` discards those gradients, also of parameters outside of the model, halves the
    micro-batch and runs the window again from its beginning, with the same samples and so with the
    same gradient. The optimizer and the scaler see none of it, and torch's default random
    generators are restored. Later windows start with the size that was found.

    What else the forward pass changes keeps the half window: running averages such as BatchNorm's,
    counters, and the random state of NumPy, of Python and of generators of your own. A parameter
    outside of the model that only a reentrant checkpoint reaches, or that comes after the first
    50,000 nodes of a graph, keeps its half gradient. Whatever depends on the micro-batch changes
    with its size: BatchNorm normalises over fewer samples, and dropout draws other masks. Only
    `torch.OutOfMemoryError`, as a GPU raises it, is caught, and only in one process: ranks would
    have to agree on the micro-batch.

    Args:
        micro_batch: The most samples to try at first; None takes the micro-batches as they come.

    Attributes:
        micro_batch: The most samples that are tried now.

    Example:
        >>> model, finder = nn.Linear(2, 1), MicroBatchFinder(micro_batch=2)
        >>> window = [torch.ones(3, 2), torch.ones(1, 2)]
        >>> loss = finder.backward_window(model, window, lambda model, x: model(x).mean())
        >>> model.bias.grad, finder.micro_batch
        (tensor([1.]), 2)
    """

    def __init__(self, micro_batch: int | None = None):
        self.micro_batch = None if micro_batch is None else whole_number(micro_batch, "micro_batch")

    def backward_window(
        self,
        model: nn.Module,
        window: Iterable,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        weight: Callable[[Any], float] = items,
        *,
        split: Callable[[Any, int], list] = pieces,
        scaler: GradScaler | None = None,
        autocast: AbstractContextManager | None = None,
    ) -> Tensor | None:
        """Puts the gradient of the window's mean loss into `.grad`, instead of what was there.

        Args:
            model: The model, in one process.
            window: The micro-batches of one update: a list from `windows`, or one large batch in a
                list.
            loss_fn: As for the function `backward_window`; so are `weight`, `scaler` and
                `autocast`.
            weight: Over how many samples or tokens the loss of a micro-batch is a mean.
            split: `split(batch, size)` returns micro-batches of up to `size` samples.
            scaler: The GradScaler that multiplies the losses.
            autocast: The context for the forward pass.

        Returns:
            The mean loss of the window, without a graph and without the scaler's factor; None if it
            holds nothing.

        Raises:
            ValueError: If the model is trained on several ranks, or if a window that ran out of
                memory has written to its batches. The gradients are then empty.
            torch.OutOfMemoryError: If a single sample does not fit. The gradients are then empty.
        """
        if adapter_of(model).world_size > 1:
            raise ValueError("MicroBatchFinder works in one process: ranks would have to agree on the micro-batch")
        window, on_gpus = list(window), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        on_cpu, before = torch.get_rng_state(), Contents(window)
        inside, outside = set(model.parameters()), WeakTensorKeyDictionary()

        def noting_what_it_reaches(model: nn.Module, batch: Any) -> Any:
            loss = loss_fn(model, batch)
            for leaf in set(leaves(filter(torch.is_tensor, tree_leaves(loss)))[0]) - inside - set(outside):
                outside[leaf] = None if leaf.grad is None else leaf.grad.clone()
            return loss

        while True:
            # Copies, since some batches are moved to a device in place.
            parts = [copy.copy(batch) if isinstance(batch, MutableMapping) else batch for batch in window]
            if self.micro_batch is not None:
                parts = [part for batch in window for part in split(batch, self.micro_batch)]
            model.zero_grad()
            try:
                return backward_window(model, parts, noting_what_it_reaches, weight, scaler=scaler, autocast=autocast)
            except torch.OutOfMemoryError as error:
                reason = str(error)
            # Not inside the except: there the traceback keeps the activations that did not fit.
            model.zero_grad()
            for leaf, gradient in outside.items():
                leaf.grad = gradient
            outside.clear()
            torch.set_rng_state(on_cpu)
            torch.cuda.set_rng_state_all(on_gpus)
            torch.cuda.empty_cache()
            if before.written() or before.differ(window):
                raise ValueError(
                    "a window that ran out of memory can't run again, since its forward pass has written to its input: "
                    f"write to a copy in loss_fn, for example to a .clone() ({reason})"
                )
            tried = max(len(split(part, 1)) for part in parts)
            if tried == 1:
                raise torch.OutOfMemoryError(
                    "a micro-batch of one item does not fit, and a window cannot be split further: use a smaller "
                    f"model, checkpointing or a smaller dtype ({reason})"
                )
            self.micro_batch = tried // 2
