"""The graphs of the first backward calls: how far back they reach, and what keeps them alive."""

from bisect import bisect
from collections import Counter
from itertools import islice
from weakref import ref

import torch
from torch import Tensor

from gradaudit.history import AuditedCall
from gradaudit.watch.nodes import is_leaf, walk
from gradaudit.watch.probe import Mark, find_losses

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
