"""The graphs of backward calls: how far back they reach, and which calls go through one of them."""

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from weakref import ref

import torch
from torch import Tensor

from gradaudit.history import PROBED_GRAPHS, AuditedCall
from gradaudit.observe.observer import Observer
from gradaudit.probes.losses import Mark, find_losses, is_leaf, walk, watch_terms

_LONG = 1_000  # nodes that are followed in one graph, at most
_MARKED_EVERY = 32  # after the first backward calls: the losses of one in so many are marked
_WALKS, _WALKS_A_LINE = 200, 3  # through the graphs of backward calls
_WATCHED_SUMS = 5  # comparisons of where gradients lie: what overwrites them does so in every window


class Graphs:
    """Looks at the graph of a backward call before it runs. `found`: called with the leaves that one reaches."""

    def __init__(self, key: str, observer: Observer, found: Callable[[list[Tensor]], None]) -> None:
        self.key, self.observer, self.found = key, observer, found
        self.losses: list[tuple[ref, int]] = []  # marked ones that something keeps; for how many calls each stands
        self.marked = 0  # the last backward call whose losses are
        self.forwards: list[ref] = []  # whose graphs are kept for further backward calls
        self.kept_at: list[int] = []  # when the last calls began that kept their graphs, in operations
        self.walked: Counter[str] = Counter()  # by line
        self.reached_at: dict[str, tuple] = {}  # by line: whose parameters it reaches first; does a BatchNorm train?
        self.sums = 0  # comparisons of where gradients lie
        self.summed_at: set[str] = set()  # lines whose calls take the losses of several forward passes along

    def look(self, call: AuditedCall, roots: list[Tensor], known: bool, again: bool) -> None:
        """Notes in a call what its graph tells.

        Args:
            call: Receives it.
            roots: What backward is called on.
            known: That is a single number, with a gradient of 1.
            again: The last call brought gradients to nobody known, so it is looked once more for leaves.
        """
        losses = self._mark_losses(call, roots, known)
        if self.forwards:
            self.forwards = [forward for forward in self.forwards if forward() is not None]
            earlier = earlier_forward(roots, f"{self.key} forward")
            call.goes_on = earlier.call if earlier else 0
        if (self.walked[call.line] < _WALKS_A_LINE or again) and self.walked.total() < _WALKS:
            self._walk(roots, call.line)
        call.nearest, call.batchnorm = self.reached_at.get(call.line, (None, False))
        for ledger in self.observer.active if self.sums < _WATCHED_SUMS else ():
            if ledger.in_grad:
                self.sums += 1
                watch_memory(ledger.gradients.parameters, call, self.observer.probe)
        if call.number <= PROBED_GRAPHS:
            self._look_for_passes(call, [root.grad_fn for root in roots if root.grad_fn is not None])
        if call.graphs > 1:
            self.summed_at.add(call.line)
        elif call.line in self.summed_at:
            call.graphs = max(1, losses)
        if any(self.observer.options):  # it leaves its graph for further calls
            forward = Forward(call.forward)
            mark_forward(roots, f"{self.key} forward", forward)
            self.forwards.append(ref(forward))

    def mark(self, roots: list[Tensor]) -> None:
        """Something else than a backward call goes through what is below `roots`."""
        for root in roots:
            for node, _ in find_losses(root.grad_fn, count=False)[0]:
                node.metadata.setdefault(self.key, Mark())

    def count_living(self, call: AuditedCall) -> None:
        """How many losses of earlier calls are kept?"""
        self.losses = [(mark, calls) for mark, calls in self.losses if mark() is not None]
        older = self.losses[:-1]  # the last may be kept only until the next
        call.alive = len(self.losses) - len(older) + sum(calls for _, calls in older)

    def _mark_losses(self, call: AuditedCall, roots: list[Tensor], known: bool) -> int:
        """Marks the losses of a call, so that they are known where they come again. Returns how many there are."""
        key, calls = "", call.number - self.marked
        if calls >= _MARKED_EVERY or call.number <= PROBED_GRAPHS or self.forwards or any(self.observer.options):
            key, self.marked = self.key, call.number
        losses = 0
        for root in roots:
            found, marks = watch_terms(root, key, call, self.observer.probe, known=known)
            losses += found
            if marks:
                self.losses.append((ref(marks[0]), calls))
        return losses

    def _walk(self, roots: list[Tensor], line: str) -> None:
        self.walked[line] += 1
        reached, trains_batchnorm = leaves(roots)
        nearest = id(reached[0]) if reached else None
        ledgers = self.observer.ledgers.values()
        self.reached_at[line] = next((r for r in ledgers if nearest in r.gradients.ids), None), trains_batchnorm
        self.found(reached)

    def _look_for_passes(self, call: AuditedCall, nodes: list) -> None:
        for node in nodes:
            call.graphs = max(call.graphs, forward_passes(node))
        retain_graph, create_graph = self.observer.options
        keeps_it = bool(retain_graph) and not create_graph  # for calls that have nothing to do with its own gradients
        if nodes and (keeps_it or self.kept_at):
            call.passes = built_between(nodes, self.kept_at)
            self.kept_at = [*self.kept_at, torch.autograd._get_sequence_nr()] if keeps_it else []


def forward_passes(root, enough: int = 3) -> int:
    """How many forward passes over other data lie below `root`: alike, with only the parameters in common.

    Returns:
        1 if there are fewer than `enough`, if not all were found, or if they differ: a penalty, or an actor beside a
        critic, is no micro-batch.
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


# Several backward calls through one forward pass are no micro-batches, since a micro-batch is other data. They are
# possible only where the graph is kept (`retain_graph`, `create_graph`). Then every node of it is marked, and later
# calls are compared with the marks. A loop that keeps no graph pays nothing.


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


# `AccumulateGrad` adopts the first gradient that it gets, without a copy. If what made that gradient writes the next
# one into the same memory, as a CUDA graph does when it is replayed, then `.grad` is overwritten before anything is
# added.


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
