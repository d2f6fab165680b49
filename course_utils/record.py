"""The events of a training loop, in order, with the norms of its gradients."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradaudit.observe.gradients import local
from gradaudit.observe.ledger import Call, OptimizerLedger, Update, Zeroing
from gradaudit.observe.observer import Listener, Observer, observing
from gradaudit.probes.graphs import leaves

NO_OPTIMIZER = "no optimizer"
_LETTERS = {"backward": "b", "step": "S", "zero": "z", "change": "c"}


class Event(NamedTuple):
    """One thing that happened on one lane.

    Args:
        kind: "backward" (one backward call brought gradients), "step", "zero" (gradients became
            `None` or zero) or "change" (someone wrote to them: clipping).
        lane: The name of the lane.
        norm: The Euclidean norm of all `.grad` of the lane after the event; for a step, the norm
            that it used. None where nobody measured it.
        held: Number of backward calls whose gradients are in `.grad` after the event; for a step,
            the number that it used.
    """

    kind: str
    lane: str
    norm: float | None = None
    held: int = 0


@dataclass
class Trace:
    """The events of a loop, in order, on one lane per optimizer.

    Parameters that receive gradients and belong to no optimizer have a lane of their own, "no
    optimizer". `print(trace)` gives one line per lane: b backward, c change, S step, z zero.

    Args:
        events: The events, if there are some already.

    Attributes:
        ledgers: For each lane its part of the ledger, which says of every backward call which
            update used it.
    """

    events: list[Event] = field(default_factory=list)
    ledgers: dict[str, OptimizerLedger] = field(default_factory=dict)

    @property
    def lanes(self) -> list[str]:
        """The names of the lanes, in order of appearance."""
        return list(dict.fromkeys(event.lane for event in self.events))

    def on(self, lane: str | None = None) -> list[Event]:
        """The events of one lane.

        Args:
            lane: Its name. Without one: the first lane that has a step, or else the first.
        """
        lane = self._lane(lane)
        return [event for event in self.events if event.lane == lane]

    def _lane(self, lane: str | None) -> str | None:
        if lane is None:
            steps = (event.lane for event in self.events if event.kind == "step")
            return next(steps, next(iter(self.lanes), None))
        if lane not in self.lanes:
            raise ValueError(f"no lane {lane!r} in this trace, only {self.lanes}")
        return lane

    def updates(self, lane: str | None = None) -> list[int]:
        """The number of micro-batches that each step used: backward calls since the last zeroing.

        A correct loop with four micro-batches per update gives `[4, 4, 4]`; one that never zeroes
        `[4, 8, 12]`; one that zeroes before it steps `[0, 0, 0]`. With two losses per micro-batch,
        and a backward call for each, four micro-batches give 8.

        Args:
            lane: As for `on()`.
        """
        return [event.held for event in self.on(lane) if event.kind == "step"]

    def leftover(self, lane: str | None = None) -> int:
        """The number of micro-batches in `.grad` at the end that no step has used.

        Args:
            lane: As for `on()`.
        """
        ledger = self.ledgers.get(self._lane(lane))
        return ledger.unmade if ledger else 0

    def __repr__(self) -> str:
        width = max(map(len, self.lanes), default=0)
        return "\n".join(
            f"{lane:{width}}  {' '.join(_LETTERS[event.kind] for event in self.on(lane))}" for lane in self.lanes
        )


@contextmanager
def record() -> Iterator[Trace]:
    """Records what any training loop inside the block does. The loop's code stays as it is.

    Optimizers that exist already and optimizers that the block creates are both seen. Everything is
    detached when the block ends, also by an exception or an interrupt. A write through `.data`
    leaves no mark on a tensor: unless it zeroes the gradients, it shows only at the next step. If
    the record itself fails, it ends with a warning (`ObserverFailure`), and the loop goes on.

    Backward calls are counted, so two losses per micro-batch with a call each count twice. A step
    inside `torch.compile` isn't seen, nor are gradients from elsewhere, as from
    `torch.autograd.grad`: `gradaudit` says so. Where two threads call `backward()` at once, the
    counts may be wrong, and a warning says so.

    Yields:
        A `Trace`, complete when the block has ended.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with record() as trace:
        ...     for x in torch.ones(4, 3, 2):
        ...         model(x).mean().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> print(trace)
        SGD  b b b b S z
        >>> trace.updates()
        [4]
    """
    writer = TraceWriter()
    with observing(writer):
        yield writer.trace


class _MeasuredLedger(OptimizerLedger):
    norm = 0.0  # at the last event
    holds = False  # whether anything was in .grad since it was last zeroed, be it zeros


class TraceWriter(Listener):
    """Writes a trace, with norms measured where gradients change and where a step uses them."""

    who = "record()"
    ledger_type = _MeasuredLedger

    def __init__(self) -> None:
        self.trace = Trace()

    def attach(self, observer: Observer) -> None:
        self.observer = observer
        self.without_optimizer = _MeasuredLedger(None)
        self.without_optimizer.name, self.without_optimizer.by_hand = NO_OPTIMIZER, True

    def backward_begins(self, number: int, roots: list[Tensor], given: bool) -> Call:
        self.watch([p for p in leaves(roots)[0] if isinstance(p, nn.Parameter)])
        return Call(number)

    def watch(self, parameters: list[Tensor]) -> None:
        """Gives parameters without an optimizer their own lane, until an optimizer takes them."""
        known = set().union(*[ledger.gradients.ids for ledger in self.observer.active])
        new = [p for p in parameters if id(p) not in known]
        for p in new:
            self.without_optimizer.gradients.add(p)
        if new and self.without_optimizer not in self.observer.by_hand:
            self.observer.add_by_hand(self.without_optimizer)

    def received(self, ledger: OptimizerLedger, call: Call) -> None:
        ledger.holds = True
        self._add("backward", ledger, norm_of(ledger.gradients.parameters))

    def zeroed(self, ledger: OptimizerLedger, zeroing: Zeroing) -> None:
        if ledger.holds or ledger.gradients.from_before:
            self._add("zero", ledger, 0.0)
        ledger.holds = False

    def changed(self, ledger: OptimizerLedger, assigned: bool) -> None:
        ledger.holds = True
        self._add("change", ledger, norm_of(ledger.gradients.parameters))

    def stepped(self, ledger: OptimizerLedger, update: Update) -> None:
        norm = norm_of(ledger.gradients.parameters)
        if repr(norm) != repr(ledger.norm) and ledger.holds:  # unscale_ and writes to .data raise no version
            self._add("change", ledger, norm)
        if not update.skipped:
            self._add("step", ledger, norm)

    def overlapped(self) -> None:
        warnings.warn("another thread ran during a backward call, so record() may miscount events", stacklevel=2)

    def _add(self, kind: str, ledger: OptimizerLedger, norm: float) -> None:
        name, ledger.norm = self.observer.name(ledger), norm
        self.trace.ledgers.setdefault(name, ledger)
        self.trace.events.append(Event(kind, name, norm, ledger.in_grad.total))


def norm_of(parameters: list[Tensor]) -> float:
    """The norm of all gradients of some parameters."""
    return nn.utils.get_total_norm([dense(p.grad) for p in parameters if p.grad is not None]).item()


def dense(grad: Tensor) -> Tensor:
    values = local(grad).detach()
    if values.is_meta:
        return torch.tensor(float("nan"), device="cpu")  # there are no numbers
    return values.coalesce().values() if values.is_sparse else values
