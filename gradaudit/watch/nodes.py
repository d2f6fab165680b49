"""Going through the graph of a backward call."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator


def walk(nodes: Iterable, stop: Callable[[object], bool] | None = None) -> Iterator:
    """Every node that is reached from these, once, the nearest first; nothing below a node for which `stop` holds."""
    todo, seen = deque(nodes), {None}
    while todo:
        node = todo.popleft()
        if node in seen:
            continue
        seen.add(node)
        below = () if stop is not None and stop(node) else node.next_functions
        yield node
        todo += [child for child, _ in below]


def is_leaf(node) -> bool:
    """Does it add to the `.grad` of a tensor, its `variable`?"""
    return node.name().endswith("AccumulateGrad")
