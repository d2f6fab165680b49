"""Several backward calls through one forward pass: they are no micro-batches, since a micro-batch is other data.

They are possible only where the graph is kept (`retain_graph`, `create_graph`). Then every node of it is marked, and
later calls are compared with the marks. A loop that keeps no graph pays nothing.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from torch import Tensor

from gradaudit.watch.nodes import is_leaf, walk


class Forward:
    """One forward pass, as a mark on the nodes of its graph, and alive for as long as that graph is.

    Attributes:
        call: The number of the backward call that went through it first.
        parameters: The ids of the leaves that it used.
    """

    def __init__(self, call: int) -> None:
        self.call = call
        self.parameters: set[int] = set()


def mark_forward(roots: Iterable[Tensor], key: str, forward: Forward) -> None:
    """Marks the graph below `roots` under the name `key`, except for what an earlier forward pass has marked."""
    for node in _walk(roots, key):
        if is_leaf(node):
            forward.parameters.add(id(node.variable))
        else:
            node.metadata.setdefault(key, forward)


def earlier_forward(roots: Iterable[Tensor], key: str) -> Forward | None:
    """The marked forward pass that a backward call on `roots` goes through, if it goes through no new one.

    A new one uses a parameter again: a state carried from segment to segment lies on an old graph and on a new one,
    and brings other data.
    """
    earlier, used = set(), set()
    for node in _walk(roots, key):
        if is_leaf(node):
            used.add(id(node.variable))
        elif key in node.metadata:
            earlier.add(node.metadata[key])
    if not earlier or any(not used.isdisjoint(forward.parameters) for forward in earlier):
        return None
    return min(earlier, key=lambda forward: forward.call)


def leaves(roots: Iterable[Tensor], most: int = 50_000) -> list[Tensor]:
    """The leaves that a backward call on `roots` reaches, the nearest first, within its nearest `most` nodes."""
    nodes = islice(walk(root.grad_fn for root in roots), most)
    return [node.variable for node in nodes if is_leaf(node)]


def _walk(roots: Iterable[Tensor], key: str) -> Iterator:
    """Every node below `roots`, once; nothing below a node that is marked under `key`."""
    return walk((root.grad_fn for root in roots), lambda node: not is_leaf(node) and key in node.metadata)
