"""The numbers that a script multiplies a loss by, and divides it by, before it calls backward: read from the graph.

What a loss counts in the end, its coefficient, can come from several of them: 1 from a mean that nobody divides, and
also from a weight of 4 that is divided by the 4 micro-batches of a window.
"""

from collections.abc import Iterable
from math import isclose, nan

from torch import Tensor

_FAR = 200  # nodes that are looked at, at most


def factors(root, losses: Iterable, scaled: bool) -> dict:
    """For each of these nodes, by which numbers what it holds is multiplied on its way to `root`, and divided.

    Numbers of 1 are left out, and so are weights that are trained, and the factor of a scaler, which comes last. Of
    what isn't one number it is nan. A node that is too far away is missing.
    """
    ends, found, seen = set(losses), {}, set()
    todo = [(root, (), ())]
    while todo and len(seen) < _FAR:
        node, times, over = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in ends:
            found[node] = times, over
            continue
        name = node.name()
        if name.startswith("MulBackward") and not (scaled and node is root):
            times += _number(node, "other", "self")
        elif name.startswith("DivBackward"):
            over += _number(node, "other")
        todo += [(child, times, over) for child, _ in node.next_functions]
    return found


def _number(node, *names: str) -> tuple[float, ...]:
    """What an operation has kept of the first of these inputs that has no graph, unless that is 1."""
    kept = [getattr(node, f"_saved_{name}", None) for name in names]
    tensors = [each for each in kept if isinstance(each, Tensor)]
    tensor = next((each for each in tensors if not each.requires_grad), None)
    if tensor is None and len(tensors) > 1:
        return ()
    if tensor is None or tensor.numel() != 1 or not tensor.is_cpu:
        return (nan,)
    value = abs(tensor.item())
    return () if isclose(value, 1.0) else (value,)
