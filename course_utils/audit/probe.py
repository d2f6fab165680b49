"""The coefficient probe: what the user's code made of each loss, read from the graph of one backward call.

Between the root of a backward and a loss lie only the user's own divisions, weights and sums. The gradient that
arrives at the loss's node is therefore exactly d(root)/d(loss), whatever that code looks like.
"""

from functools import cache

import torch
from torch import Tensor

from course_utils.audit.history import Backward, Term

# Nodes between a root and its losses: linear in the loss, so that the coefficient does not depend on its value.
_BETWEEN = ("Div", "Mul", "Add", "Sub", "Neg", "ToCopy", "Stack", "Cat", "Clone", "Alias", "View", "Reshape", "Squeeze",
            "Unsqueeze", "Expand", "Select", "Unbind", "Copy", "To")  # fmt: skip
_LOSSES = ("NllLoss", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy", "SoftMarginLoss", "MultiMarginLoss",
           "MultilabelMarginLoss", "KlDiv")  # fmt: skip
_REDUCTIONS = {1: "mean", 2: "sum"}
_FAR = 100  # nodes that are looked at in one backward call, at most


class Mark:
    """Left on the graph node of a loss, and alive for as long as that graph is."""


def watch_terms(root: Tensor, key: str, call: Backward, known: bool = False) -> tuple[list[Mark], bool]:
    """Finds the losses below `root`, so that `call.terms` holds their terms when the backward call has ended.

    Args:
        root: What backward is called on.
        key: The losses' nodes are marked under this name.
        call: Receives the terms, and in `probes` the hooks, which must be removed after the call.
        known: Backward starts at `root` alone, with a gradient of 1. A root that is itself a loss needs no hook then,
            and most are; a hook costs the smallest backward a tenth of its time.

    Returns:
        The marks on the losses' nodes, and whether one of them was there before, from an earlier backward call.
    """
    marks, again = [], False
    start = root.grad_fn
    known = known and root.numel() == 1 and not root._backward_hooks  # the user's own may change the gradient
    for node, name, reduction, items in _losses(start):
        metadata = node.metadata
        again |= key in metadata
        marks.append(metadata.setdefault(key, Mark()))
        if known and node is start:
            call.terms.append(Term(name, reduction, 1.0, call.scaled, items))
            continue

        def note(gradients, name=name, reduction=reduction, items=items) -> None:
            (gradient, *_) = gradients
            if gradient is not None and gradient.numel() == 1:
                call.terms.append(Term(name, reduction, _number(gradient), call.scaled, items))

        call.probes += (node.register_prehook(note),)
    return marks, again


def _number(tensor: Tensor) -> float | Tensor:
    """On a GPU it is not read here, which would wait for all that the GPU still has to do."""
    return tensor.item() if tensor.is_cpu else tensor.detach()


def _losses(root) -> list[tuple]:
    """The reductions below `root`, each with its name, kind and count of items."""
    losses, todo, seen = [], [root], set()
    while todo and len(seen) < _FAR:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind, name = _kind(node.name())
        if kind == "between":
            todo += [child for child, _ in reversed(node.next_functions)]
        elif kind == "loss":
            reduction = getattr(node, "_saved_reduction", None)
            if reduction in _REDUCTIONS:
                losses.append((node, name, _REDUCTIONS[reduction], _count(node)))
        elif kind == "reduction":
            below = [child for child, _ in node.next_functions if child is not None]
            if any(child.name().startswith(("Stack", "Cat")) for child in below):
                todo += below  # a mean or sum over losses that were collected
            else:
                losses.append((node, name.lower(), name.lower(), _numel(node) if name == "Mean" else None))
    return losses


@cache
def _kind(name: str) -> tuple[str, str]:
    """What a node is: "loss", "reduction", "between" these and the root, or anything else; and its short name."""
    name = name.removesuffix("0").removesuffix("1").removesuffix("Backward")
    if name in ("Mean", "Sum"):
        return "reduction", name
    return "loss" if name.startswith(_LOSSES) else "between" if name.startswith(_BETWEEN) else "", name


def _numel(node) -> float | None:
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    return None if sizes is None else float(torch.Size(sizes).numel())


def _count(node) -> float | Tensor | None:
    """Over how many items, or how much weight, the mean of a loss function was taken."""
    total = getattr(node, "_saved_total_weight", None)
    if total is not None:
        return _number(total)
    tensor = getattr(node, "_saved_self", None)
    return None if tensor is None else float(tensor.numel())


def separate_graphs(root: Tensor, enough: int = 3) -> int:
    """How many losses of one kind lie below `root` whose graphs have nothing in common but the parameters."""
    groups: dict[str, list] = {}
    for node, name, _, _ in _losses(root.grad_fn):
        groups.setdefault(name, []).append(node)
    nodes = max(groups.values(), key=len, default=[])
    if len(nodes) < enough:
        return 1
    seen: set = set()
    for node in nodes:
        mine: set = set()
        todo = [node]
        while todo:
            inner = todo.pop()
            if inner is None or inner in mine or inner.name().endswith("AccumulateGrad"):
                continue
            mine.add(inner)
            todo += [child for child, _ in inner.next_functions]
        if mine & seen:
            return 1
        seen |= mine
    return len(nodes)
