"""The graphs of backward calls: how far back they reach, what keeps them alive, and which calls go through one of them."""

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from weakref import ref

import torch
from torch import Tensor

from gradaudit.history import AuditedCall
from gradaudit.watch.losses import Mark, find_losses, is_leaf, walk

_LONG = 1_000  # nodes that are followed in one graph, at most


class GraphWatch:
    """Looks at the graphs of the first backward calls, before they run. `key`: nodes are marked under this name."""

    def __init__(self, key: str) -> None:
        self.key = f"{key} first operation"
        self.forwards: list[ref] = []  # of the calls so far, for as long as something keeps any of the forward pass
        self.ends: list[int] = []  # when the last calls began that kept their graphs, in operations

    def look(self, call: AuditedCall, roots: list[Tensor], keeps_graph: bool, zeroed_at: int) -> None:
        """Notes in the call what its graph has in common with others.

        Args:
            call: Receives it.
            roots: What backward is called on.
            keeps_graph: Is the graph kept for other calls that have nothing to do with its own gradients?
            zeroed_at: The last call of zero_grad(), in operations.
        """
        self.forwards = [forward for forward in self.forwards if forward() is not None]
        call.kept = len(self.forwards)
        nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
        for node in nodes:
            call.graphs = max(call.graphs, forward_passes(node))
            first = nearest_to_the_parameters(node)
            call.zeroed_inside |= call.graphs > 1 and first._sequence_nr() < zeroed_at
            metadata = first.metadata
            if self.key not in metadata:
                metadata[self.key] = Mark()
                self.forwards.append(ref(metadata[self.key]))
        if nodes and (keeps_graph or self.ends):
            call.passes = built_between(nodes, self.ends)
            self.ends = [*self.ends, torch.autograd._get_sequence_nr()] if keeps_graph else []


def forward_passes(root, enough: int = 3) -> int:
    """How many forward passes over other data lie below `root`: alike, with only the parameters in common.

    Returns:
        1 if there are fewer than `enough`, or if they differ: a penalty, or an actor beside a critic, is no
        micro-batch.
    """
    losses, others = find_losses(root, count=False)
    if others or len(losses) < enough or len({(term.name, term.reduction) for _, term in losses}) > 1:
        return 1
    seen, alike = set(), None
    for loss, _ in losses:
        mine = set(walk([loss]))
        parameters = {node for node in mine if is_leaf(node)}
        mine -= parameters
        operations = Counter(node.name() for node in mine)
        alike = alike or (operations, parameters)
        if mine & seen or alike != (operations, parameters):
            return 1
        seen |= mine
    return len(losses)


def built_between(roots: list, ends: list[int]) -> int:
    """Between how many backward calls a graph was built: more than one if it goes through tensors from before.

    Args:
        roots: The nodes that backward is called on.
        ends: When the earlier calls began: the sequence number that the next operation was to have.
    """
    nodes = set().union(*(islice(walk([root]), _LONG) for root in roots))
    return len({bisect(ends, node._sequence_nr()) for node in nodes if not is_leaf(node)})


def made_before(roots: list[Tensor], began: int, scaled: bool) -> bool:
    """Were these roots made before an operation of this number? `scaled`: each is the product with a scale."""
    nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
    if scaled:  # the product is younger
        nodes = [child for node in nodes for child, _ in node.next_functions[:1] if child is not None]
    return all(node._sequence_nr() < began for node in nodes)


def nearest_to_the_parameters(node):
    """The first operation on one way down to the parameters. It lives for as long as anything of that forward pass."""
    for _ in range(_LONG):
        below = next((child for child, _ in node.next_functions if child is not None and not is_leaf(child)), None)
        if below is None:
            break
        node = below
    return node


# Several backward calls through one forward pass are no micro-batches, since a micro-batch is other data. They are possible
# only where the graph is kept (`retain_graph`, `create_graph`). Then every node of it is marked, and later calls are
# compared with the marks. A loop that keeps no graph pays nothing.


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
    for node in _unmarked(roots, key):
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
    for node in _unmarked(roots, key):
        if is_leaf(node):
            used.add(id(node.variable))
        elif key in node.metadata:
            earlier.add(node.metadata[key])
    if not earlier or any(not used.isdisjoint(forward.parameters) for forward in earlier):
        return None
    return min(earlier, key=lambda forward: forward.call)


def leaves(roots: Iterable[Tensor], most: int = 50_000) -> tuple[list[Tensor], bool]:
    """The leaves that a backward call on `roots` reaches, the nearest first, within its nearest `most` nodes.

    Also whether a BatchNorm layer in training mode lies between.
    """
    found, trains = [], False
    for node in islice(walk(root.grad_fn for root in roots), most):
        if is_leaf(node):
            found.append(node.variable)
        else:
            trains |= "BatchNorm" in node.name() and getattr(node, "_saved_training", False)
    return found, trains


def _unmarked(roots: Iterable[Tensor], key: str) -> Iterator:
    """Every node below `roots`, once; nothing below a node that is marked under `key`."""
    return walk((root.grad_fn for root in roots), lambda node: not is_leaf(node) and key in node.metadata)


# `AccumulateGrad` adopts the first gradient that it gets, without a copy. If what made that gradient writes the next one
# into the same memory, as a CUDA graph does when it is replayed, then `.grad` is overwritten before anything is added.


def watch_memory(parameters: Iterable[Tensor], call: AuditedCall, probe: Callable) -> None:
    """Counts in `call.overwritten` the parameters whose gradient comes in the memory of their `.grad`.

    Args:
        parameters: Those that may receive gradients. Only the ones that hold a gradient already are looked at.
        call: Receives the count.
        probe: Registers a hook for this backward call, as `Observer.probe` does.
    """

    def compare(p: Tensor, incoming: Tensor) -> None:
        if _address(incoming) is not None and _address(incoming) == _address(p.grad):
            call.overwritten += 1

    for p in [p for p in parameters if p.requires_grad and _address(p.grad) is not None]:
        probe(p.register_hook, partial(compare, p))


def _address(tensor: Tensor | None) -> int | None:
    """Where an ordinary tensor's first number lies; None for sparse, sharded and meta tensors, and empty ones."""
    ordinary = type(tensor) is Tensor and not tensor.is_sparse and not tensor.is_meta and tensor.numel()
    return tensor.data_ptr() if ordinary else None
