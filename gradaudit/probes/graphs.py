"""The graphs of backward calls: how far back they reach, and which calls go through one of them."""

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from weakref import WeakSet

import torch
from torch import Tensor

from gradaudit.history import PROBED_GRAPHS, AuditedCall
from gradaudit.observe.observer import Observer
from gradaudit.probes.losses import Mark, children, find_losses, is_leaf, walk, watch_terms

_LONG = 1_000  # nodes that are followed in one graph, at most
_COUNTED = 500  # calls, the first ones, before each of which the kept losses are counted; then before every 500th
_WALKS, _WALKS_A_LINE = 200, 3  # through the graphs of backward calls


class Graphs:
    """Looks at the graph of a backward call before it runs. `found`: called with the leaves that one reaches."""

    def __init__(self, key: str, observer: Observer, found: Callable[[list[Tensor]], None]) -> None:
        self.key, self.observer, self.found = key, observer, found
        self.losses: WeakSet[Mark] = WeakSet()  # as long as something keeps their graphs
        self.kept: list[tuple[int, int]] = []  # when the last calls began that kept their graphs, and their numbers
        self.walked: Counter[tuple] = Counter()  # by line and number of losses
        self.reached_at: dict[
            tuple, tuple
        ] = {}  # in the same way: whose parameters lie above whose; does a BatchNorm train?
        self.summed_at: set[str] = set()  # lines whose calls take the losses of several forward passes along

    def look(self, call: AuditedCall, roots: list[Tensor], known: bool, again: bool) -> None:
        """Notes in a call what its graph tells.

        Args:
            call: Receives it.
            roots: What backward is called on.
            known: Whether that is a single number, with a gradient of 1.
            again: The last call brought gradients to nobody known, so it is looked once more for leaves.
        """
        if call.number <= _COUNTED or call.number % _COUNTED == 0:  # it takes as long as there are losses
            call.alive = len({mark.call for mark in self.losses})
        watched = (watch_terms(root, self.key, call, self.observer.probe, self.losses, known) for root in roots)
        losses = [loss for each in watched for loss in each]
        way = call.line, len(losses)  # one line may take more losses along later, as where a critic joins in
        if (self.walked[way] < _WALKS_A_LINE or again) and self.walked.total() < _WALKS:
            self._walk(roots, way)
        call.above, call.batchnorm = self.reached_at.get(way, (frozenset(), False))
        nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
        if call.number <= PROBED_GRAPHS:
            self._watch_memory(call)
            call.graphs = max(map(forward_passes, nodes), default=1)
        if call.graphs > 1:
            self.summed_at.add(call.line)
        elif call.line in self.summed_at:
            call.graphs = len(losses) if len(set(losses)) == 1 else 1
        self._look_for_passes(call, nodes)

    def _walk(self, roots: list[Tensor], way: tuple[str, int]) -> None:
        self.walked[way] += 1
        reached, trains_batchnorm = leaves(roots)
        ids = set(map(id, reached))
        ledgers = [each for each in self.observer.ledgers.values() if not ids.isdisjoint(each.gradients.ids)]
        self.reached_at[way] = _above(roots, ledgers) if len(ledgers) > 1 else frozenset(), trains_batchnorm
        self.found(reached)

    def _look_for_passes(self, call: AuditedCall, nodes: list) -> None:
        """Between which backward calls were parameters used for a graph?

        Between several if it goes through tensors from before. After none but earlier ones if it goes through one of
        their forward passes once more, which makes no further micro-batch. Both need a call that keeps its graph.
        """
        retain_graph, create_graph = self.observer.options
        keeps_it = bool(retain_graph) and not create_graph  # for calls that have nothing to do with its own gradients
        if self.kept:
            begun = [operation for operation, _ in self.kept]
            users = [node for node in islice(walk(nodes), _LONG) if any(map(is_leaf, children(node)))]
            after = {bisect(begun, node._sequence_nr()) for node in users}
            call.passes = max(1, len(after))
            call.goes_on = self.kept[max(after)][1] if after and max(after) < len(begun) else 0
        self.kept = [*self.kept, (torch.autograd._get_sequence_nr(), call.forward)][-PROBED_GRAPHS:] if keeps_it else []

    def _watch_memory(self, call: AuditedCall) -> None:
        """Counts in a call the parameters whose gradient comes in the memory of their `.grad`.

        `AccumulateGrad` adopts the first gradient that it gets, without a copy. If what made that gradient writes the
        next one into the same memory, as a CUDA graph does, then `.grad` is overwritten before anything is added.
        """

        def compare(address: int, incoming: Tensor) -> None:
            call.overwritten += not incoming.is_sparse and incoming.data_ptr() == address

        ledgers = (ledger for ledger in self.observer.active if ledger.in_grad)
        for p in (p for ledger in ledgers for p in ledger.gradients.parameters if p.requires_grad):
            if type(p.grad) is Tensor and not p.grad.is_sparse and p.grad.data_ptr():
                self.observer.probe(p.register_hook, partial(compare, p.grad.data_ptr()))


def _above(roots: list[Tensor], ledgers: list) -> frozenset[tuple]:
    """Pairs of optimizers: a loss reaches the second one's parameters through those of the first.

    As a generator's loss goes through the critic. A parameter is used where its way meets that of the data.
    """
    parents, owners = defaultdict(list), {}
    for node in walk(root.grad_fn for root in roots):
        for child in children(node):
            parents[child].append(node)
        if is_leaf(node):
            owners[node] = next((each for each in ledgers if id(node.variable) in each.gradients.ids), None)

    def uses(node) -> Iterator:
        for parent in parents[node]:
            yield from [parent] if len(children(parent)) > 1 else uses(parent)

    found = set()
    for ledger in ledgers:
        used = [node for leaf, owner in owners.items() if owner is ledger for node in uses(leaf)]
        found |= {(ledger, owners[node]) for node in walk(used) if owners.get(node) not in (None, ledger)}
    return frozenset(found)


def forward_passes(root, enough: int = 3) -> int:
    """How many forward passes over other data lie below `root`: with only the same parameters in common.

    Returns:
        1 if there are fewer than `enough`, if not all were found, or if they differ: a penalty, or an actor beside a
        critic, is no micro-batch.
    """
    losses, others = find_losses(root, count=False)
    if others or len(losses) < enough or len({(term.name, term.reduction) for _, term in losses}) > 1:
        return 1
    below = [set(walk([loss])) for loss, _ in losses]
    parameters = [{node for node in nodes if is_leaf(node)} for nodes in below]
    alike = all(each == parameters[0] for each in parameters)
    apart = len(set().union(*below) - parameters[0]) == sum(len(nodes - parameters[0]) for nodes in below)
    return len(losses) if alike and apart else 1


def leaves(roots: Iterable[Tensor], most: int = 50_000) -> tuple[list[Tensor], bool]:
    """The leaves that a backward call on `roots` reaches, the nearest first, within its nearest `most` nodes.

    Also whether a BatchNorm layer in training mode lies between.
    """
    nodes = list(islice(walk(root.grad_fn for root in roots), most))
    trains = any("BatchNorm" in node.name() and getattr(node, "_saved_training", False) for node in nodes)
    return [node.variable for node in nodes if is_leaf(node)], trains
