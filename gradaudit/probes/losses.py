"""The coefficient probe: what the user's code made of each loss, read from the graph of one backward call.

Between the root of a backward and a loss lie only the user's own divisions, weights and sums. The gradient that
arrives at the loss's node is therefore exactly d(root)/d(loss), whatever that code looks like.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from math import isclose, nan
from weakref import WeakSet

import torch
from torch import Tensor

from gradaudit.history import AuditedCall, Term

# Nodes between a root and its losses: linear in the loss, so that the coefficient does not depend on its value.
_BETWEEN = frozenset({"Div", "Mul", "Add", "Sub", "Rsub", "Neg", "ToCopy", "Stack", "Cat", "Clone", "Alias", "View",
            "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Expand", "Permute", "Select", "Slice",
            "Unbind", "Split", "CopySlices", "CopyBackwards"})  # fmt: skip
_COLLECTED = ("Stack", "Cat", "CopySlices")  # losses that the script has put into one tensor
_LOSSES = ("NllLoss", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy", "SoftMarginLoss", "MultiMarginLoss",
           "MultilabelMarginLoss", "KlDiv")  # fmt: skip
_REDUCTIONS = {1: "mean", 2: "sum"}
_FAR = 100  # nodes that are looked at in one backward call, at most
_COMPARED = 200  # backward calls whose targets are looked at
_DEEP = 10  # nodes below a sum, of which one may hold the mask


class Mark:
    """Left on the graph node of a loss, and alive for as long as that graph is. `call`: the last to go through it."""

    call = 0


def watch_terms(root: Tensor, key: str, call: AuditedCall, probe: Callable, marks: WeakSet, known: bool) -> list:
    """Finds the losses below `root`, so that `call.terms` holds their terms when the backward call has ended.

    Args:
        root: What backward is called on.
        key: The losses' nodes are marked under this name.
        call: Receives the terms. Its `again` is set if an earlier call has gone through one of the losses.
        probe: Registers a hook for this backward call, as `Observer.probe` does.
        marks: Receives the marks on the losses' nodes.
        known: Whether the call starts at `root` alone, a scalar, with gradient 1. Most roots are a loss themselves, and
            need no hook then; a hook costs the smallest backward a tenth of its time.

    Returns:
        The losses' names and reductions.
    """
    losses, others = find_losses(root.grad_fn, call.scaled)
    for node, term in losses or others:
        if call.number <= _COMPARED:
            term.is_label = _is_label(node)
        if term.reduction != "unknown":
            mark = node.metadata.setdefault(key, Mark())
            call.goes_anew |= not mark.call
            call.again, mark.call = mark.call or call.again, call.number
            marks.add(mark)
        if known and node is root.grad_fn and not root._backward_hooks:  # the script's own may change the gradient
            call.terms.append(term)
            continue

        def note(gradients, term=term) -> None:
            (gradient, *_) = gradients
            if gradient is not None and gradient.numel() == 1:
                term.value = number(gradient)
                call.terms.append(term)

        probe(node.register_prehook, note)
    return [(term.name, term.reduction) for _, term in losses]


def number(tensor: Tensor) -> float | Tensor:
    """On a GPU it is not read here, which would wait for all that the GPU still has to do. A meta tensor has none."""
    return tensor.item() if tensor.is_cpu else nan if tensor.is_meta else tensor.detach()


def find_losses(root, scale: float = 1.0, count: bool = True) -> tuple[list[tuple], list[tuple]]:
    """The reductions below `root`, each with its term; and the nodes that are none, behind which a loss may lie.

    Every term has the coefficient that it would have at the root. Without `count`, nothing is read that a backward
    call frees.
    """
    losses, others, seen = [], [], set()
    todo = [(root, (), ())]  # nodes, and by what each is multiplied and divided on its way to the root
    while todo and len(seen) < _FAR:
        node, times, over = todo.pop()
        if node is None or node in seen or is_leaf(node):
            continue
        seen.add(node)
        loss, (reduction, name) = node, _classify(node)
        if name == "Add" and (smoothed := _smoothed(node)):
            loss, (reduction, name) = smoothed, _classify(smoothed)
        if name == "Mul" and (scale == 1 or node is not root):  # a scaler's comes last
            times += _factor(node, "other", "self")
        elif name == "Div":
            over += _factor(node, "other")
        inside = children(node) if reduction == "between" else _collected(node) if reduction == name else []
        if inside:
            todo += [(child, times, over) for child in reversed(inside)]
            continue
        items, own = _counts(loss, reduction) if count and reduction != "unknown" else (None, ())
        term = Term(name, reduction, 1.0, scale, items, own, times, over)
        term.masked = _is_masked(loss, items)
        term.by_class = name.startswith("Nll") and reduction == "mean" and loss._saved_weight is not None
        (others if reduction == "unknown" else losses).append((node, term))
    others += [(node, Term("", "unknown", 1.0, scale, None)) for node, *_ in todo[:1]]  # not followed to its end
    return losses, others


def _factor(node, *names: str) -> tuple[float, ...]:
    """What an operation has kept of the first of these inputs that has no graph: nothing if that is 1.

    It is nan of what isn't one number that can be read.
    """
    tensor = _saved(node, *names)
    if tensor is None or tensor.numel() != 1 or not tensor.is_cpu:
        return (nan,)
    value = abs(tensor.item())
    return () if isclose(value, 1.0) else (value,)


def _classify(node) -> tuple[str, str]:
    """What a node is: "between" the losses and the root, a "mean" or "sum", or "unknown"; and its name.

    The name says which loss function took a mean or a sum. If none did, it is "mean" or "sum" as well.
    """
    name = node.name().removeprefix("torch::autograd::").rstrip("01").removesuffix("Backward")
    if name in _BETWEEN:
        return "between", name
    if name.startswith(_LOSSES):
        return _REDUCTIONS.get(getattr(node, "_saved_reduction", 0), "unknown"), name
    if name in ("Mean", "Sum") and len(getattr(node, "_saved_dim", None) or _sizes(node)) >= len(_sizes(node)):
        return name.lower(), name.lower()
    return "unknown", name


def children(node) -> list:
    return [child for child, _ in node.next_functions if child is not None]


def _smoothed(node):
    """The loss inside a label-smoothed cross-entropy, two terms in proportions that only PyTorch itself gives them."""
    parts = children(node)
    if [part.name() for part in parts] != ["MulBackward1"] * 2:
        return None
    (loss,) = children(parts[0])
    return loss if loss.name().startswith("NllLoss") else None


def _collected(node) -> list:
    """What a reduction was taken over, if that is a collection of losses, or a loss that is one number already."""
    parts = children(node)
    while len(parts) == 1 and _classify(parts[0])[1] in ("ToCopy", "View"):
        parts = children(parts[0])
    if _sizes(node) in ((), (1,)) or any(_classify(child)[1] in _COLLECTED for child in parts):
        return parts if any(find_losses(child, count=False)[0] for child in parts) else []
    return []


def _sizes(node) -> torch.Size:
    """The shape of what a mean or a sum was taken over."""
    return torch.Size(node._saved_self_sym_sizes)


def _counts(node, reduction: str) -> tuple[float | Tensor | None, tuple]:
    """Over how many items, or how much weight, a mean or a loss function's sum was taken; and a sum's own counts."""
    if hasattr(node, "_saved_self_sym_sizes"):  # it is no loss function's
        return (float(_sizes(node).numel()), ()) if reduction == "mean" else (None, _own_counts(node))
    tensor, total = node._saved_self, getattr(node, "_saved_total_weight", None)
    counts = (float(tensor.numel()), float(tensor.shape[:1].numel())) if total is None else (number(total),)
    return counts[0], counts if reduction == "sum" else ()


def _is_masked(loss, items: float | Tensor | None) -> bool:
    """Whether a loss function left targets out. It isn't read on a GPU, which would have to be waited for."""
    targets = getattr(loss, "_saved_target", None) if isinstance(items, float) else None
    return targets is not None and loss.name().startswith("Nll") and items < targets.numel()


def _own_counts(node) -> tuple[float | Tensor, ...]:
    """The counts over which the mean of what a node sums up could be taken: its targets or mask, samples, numbers."""
    sizes, counts = _sizes(node), []
    summed = sizes.numel()
    for _ in range(_DEEP):
        node = next(iter(children(node)), None)
        name = "" if node is None else _classify(node)[1]
        mask = _mask(node, name)
        if mask is not None and mask.dim() and mask.numel() and summed % mask.numel() == 0:
            counts.append(number(mask.sum() * (summed // mask.numel())))
        elif name == "Sum":  # over some dimensions first
            summed = _sizes(node).numel()
        elif name not in _BETWEEN:
            break
    return (*counts, float(sizes[:1].numel()), float(sizes.numel()))


def _mask(node, name: str) -> Tensor | None:
    """What says which numbers count, or how much, if an operation of this name was told."""
    if name == "MaskedFill":
        mask = _saved(node, "mask")
        return None if mask is None else mask.logical_not()
    if name.startswith("NllLoss"):
        index = node._saved_ignore_index
        return node._saved_target != (index - 2**64 if index >= 2**63 else index)  # it is shown as an unsigned number
    return _saved(node, *{"Mul": ("other", "self"), "Where": ("condition",)}.get(name, ()))


def _saved(node, *names: str) -> Tensor | None:
    """What an operation has kept of the first of these inputs that is a plain tensor and needs no gradient."""
    for name in names:
        tensor = getattr(node, f"_saved_{name}", None)
        if type(tensor) is Tensor and not tensor.requires_grad:
            return tensor
    return None


def _is_label(node) -> bool | Tensor:
    """Whether the targets of a loss function that takes numbers are all the same; a tensor on a GPU, as `number`."""
    targets = None if node.name().startswith("NllLoss") else _saved(node, "target")
    return targets is not None and targets.numel() > 1 and (targets == targets.flatten()[0]).all()


# Going through the graph of a backward call


def walk(nodes: Iterable) -> Iterator:
    """Every node that is reached from these, once, the nearest first."""
    todo, seen = deque(nodes), {None}
    while todo:
        node = todo.popleft()
        if node not in seen:
            seen.add(node)
            yield node
            todo += children(node)


def is_leaf(node) -> bool:
    """Does it add to the `.grad` of a tensor, its `variable`?"""
    return node.name().endswith("AccumulateGrad")
