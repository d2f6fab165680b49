"""The events of a training loop, in order, with the norms of its gradients."""

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import hypot, isnan
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from gradaudit.observe.gradients import Gradients, local
from gradaudit.observe.ledger import Call, Record, Update, Zeroing
from gradaudit.observe.observer import Listener, Observer, observing

NO_OPTIMIZER = "no optimizer"
_OVERLAPPED = "another thread ran during a backward call, so events may be missing, or be counted wrongly"
_LETTERS = {"forward": "f", "backward": "b", "step": "S", "zero": "z", "change": "c"}


class Event(NamedTuple):
    """One thing that happened on one lane.

    Args:
        kind: "forward" (a module that is not inside another one was called), "backward" (one
            backward call brought gradients), "step", "zero" (gradients became `None` or zero) or
            "change" (someone wrote to them: clipping).
        lane: The name of the lane.
        norm: The Euclidean norm of all `.grad` of the lane after the event; for a step, the norm
            that it used. None where nobody measured it.
        held: Number of backward calls whose gradients are in `.grad` after the event; for a step,
            the number that it used.
        window: The update of its lane that it belongs to, from 1: for a pass the next update, for
            anything after a step that update.
    """

    kind: str
    lane: str
    norm: float | None = None
    held: int = 0
    window: int = 0


@dataclass
class Trace:
    """The events of a loop, in order, on one lane per optimizer.

    Parameters that receive gradients and belong to no optimizer have a lane of their own, "no
    optimizer". `print(trace)` gives one line per lane: f forward, b backward, c change, S step,
    z zero.

    Args:
        events: The events, if there are some already.

    Attributes:
        records: For each lane its part of the ledger, which says of every backward call which
            update used it.
        unseen: What could not be seen, in sentences; empty if nothing is missing as far as anyone
            can tell.
    """

    events: list[Event] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)

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

    def windows(self, lane: str | None = None) -> list[int]:
        """The number of micro-batches that each step used: backward calls since the last zeroing.

        A correct loop with four micro-batches per update gives `[4, 4, 4]`; one that never zeroes
        `[4, 8, 12]`; one that zeroes before it steps `[0, 0, 0]`. With two losses per micro-batch,
        and a backward call for each, four micro-batches give 8. Steps and gradients that `unseen`
        names are missing here.

        Args:
            lane: As for `on()`.
        """
        return [event.held for event in self.on(lane) if event.kind == "step"]

    def leftover(self, lane: str | None = None) -> int:
        """The number of micro-batches in `.grad` at the end that no step has used.

        Args:
            lane: As for `on()`.
        """
        record = self.records.get(self._lane(lane))
        return record.unmade if record else 0

    def __str__(self) -> str:
        width = max(map(len, self.lanes), default=0)
        return "\n".join(
            f"{lane:{width}}  {' '.join(_LETTERS[event.kind] for event in self.on(lane))}" for lane in self.lanes
        )

    def __repr__(self) -> str:
        unseen = "".join(f"; not seen: {sentence}" for sentence in self.unseen)
        return f"<Trace of {len(self.events)} events on {len(self.lanes)} lanes{unseen}>"


@contextmanager
def record() -> Iterator[Trace]:
    """Records what any training loop inside the block does. The loop's code stays as it is.

    Optimizers that exist already and optimizers that the block creates are both seen. Everything is
    detached when the block ends, also by an exception or an interrupt. A write through `.data`
    leaves no mark on a tensor: unless it zeroes the gradients, it shows only at the next step. If
    the record itself fails, it ends with a warning (`ObserverFailure`), and the loop goes on.

    Backward calls are counted, so two losses per micro-batch with a call each count twice. A step
    inside `torch.compile` isn't seen, nor are gradients from elsewhere, as from
    `torch.autograd.grad`, and where two threads call `backward()` at once, the counts may be wrong:
    `trace.unseen` says so.

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
        SGD  f b f b f b f b S z
        >>> trace.windows()
        [4]
    """
    writer = TraceWriter()
    with observing(writer):
        yield writer.trace


class _MeasuredGradients(Gradients):
    """Also the norm of each gradient, by the parameter's id."""

    def __init__(self) -> None:
        super().__init__()
        self.norms: dict[int, float] = {}
        self.holds: set[int] = set()  # parameters with gradients since .grad was last zeroed

    def add(self, p: Tensor) -> None:
        super().add(p)
        self.measure([len(self.parameters) - 1])
        if self.norms[id(p)]:
            self.holds.add(id(p))

    def discard(self, ids: set[int]) -> None:
        super().discard(ids)
        self.norms = {key: norm for key, norm in self.norms.items() if key not in ids}
        self.holds -= ids

    def measure(self, places: Sequence[int]) -> None:
        parameters = [self.parameters[place] for place in places]
        self.norms.update(zip(map(id, parameters), _norms([p.grad for p in parameters]), strict=True))

    def note_changes(self) -> set[str]:
        """Kinds of events, "change" or "zero", of the gradients that were written, or of all."""
        kinds, before = set(), dict(self.norms)
        places = self.touched or range(len(self.parameters))
        self.measure(places)
        for key in (id(self.parameters[place]) for place in places):
            norm = self.norms[key]
            if not self.touched and (norm == before[key] or (isnan(norm) and isnan(before[key]))):
                continue
            if norm:
                kinds.add("change")
                self.holds.add(key)
            elif key in self.holds:
                kinds.add("zero")
                self.holds.discard(key)
        return kinds


class _MeasuredRecord(Record):
    gradients_type = _MeasuredGradients

    def __init__(self, *args) -> None:
        super().__init__(*args)
        if args[0] is None:
            self.name, self.by_hand = NO_OPTIMIZER, True
        self.unnamed: list[int] = []  # indices of its events from before it had a name
        self.foreign = 0  # steps whose gradients came from no backward call
        self.weights: int | None = None  # their version at the last backward call
        self.moved = False  # whether they have changed since a backward call

    @property
    def steps(self) -> list[Update]:
        return [update for update in self.updates if not update.skipped]


class TraceWriter(Listener):
    """Writes a trace, with norms measured where gradients change and where a step uses them."""

    who = "record()"
    record_type = _MeasuredRecord

    def __init__(self) -> None:
        self.trace = Trace()

    def attach(self, observer: Observer) -> None:
        self.observer, self.name = observer, observer.name
        self.depth = threading.local()  # of the module that is being called
        self.without_optimizer = _MeasuredRecord(None)
        observer.undo.callback(register_module_forward_pre_hook(observer.guard(self._before_forward)).remove)
        observer.undo.callback(
            register_module_forward_hook(observer.guard(self._after_forward), always_call=True).remove
        )

    def _before_forward(self, module: nn.Module, _inputs) -> None:
        if is_dynamo_compiling():
            return
        self.depth.now = getattr(self.depth, "now", 0) + 1
        if self.depth.now > 1 or self.observer.inside() is not None:  # a checkpoint computes again
            return
        self.observer.look(values=True)
        self.observer.update()
        parameters = {id(p): p for p in module.parameters()}
        self.watch([p for p in parameters.values() if p.requires_grad])
        self.forward([record for record in self.observer.own() if not record.gradients.ids.isdisjoint(parameters)])

    def watch(self, parameters: list[Tensor]) -> None:
        """Gives parameters without an optimizer their own lane, until an optimizer takes them."""
        known = set().union(*[record.gradients.ids for record in self.observer.active])
        new = [p for p in parameters if id(p) not in known]
        for p in new:
            self.without_optimizer.gradients.add(p)
        if new and self.without_optimizer not in self.observer.by_hand:
            self.observer.add_by_hand(self.without_optimizer)

    def _after_forward(self, *_) -> None:
        if not is_dynamo_compiling():
            self.depth.now = max(0, getattr(self.depth, "now", 0) - 1)

    def forward(self, records: list[Record]) -> None:
        """Notes a call of an outermost module with parameters in these records."""
        for record in records:
            name, norm = record.name or record.kind, hypot(*record.gradients.norms.values())
            self.trace.events.append(Event("forward", name, norm, record.in_grad.total, record.made + 1))
            if not record.name:  # after the event, or an interrupt leaves none there
                record.unnamed.append(len(self.trace.events) - 1)

    def received(self, record: Record, call: Call) -> None:
        self._notice_a_move(record)
        gradients = record.gradients
        gradients.measure(gradients.touched)
        gradients.holds.update(id(gradients.parameters[place]) for place in gradients.touched)
        self._add("backward", record, record.made + 1)

    def zeroed(self, record: Record, zeroing: Zeroing) -> None:
        self._add_changes(record, record.made + bool(zeroing.calls))

    def changed(self, record: Record, assigned: bool) -> None:
        self._add_changes(record, record.made + bool(record.unused))

    def stepped(self, record: Record, update: Update) -> None:
        record.gradients.touched = []
        self._add_changes(record, record.made)  # unscale_ and writes to .data raise no version
        if not update.skipped:
            record.foreign += not (update.held or record.gradients.empty)
            self._add("step", record, record.made)

    def overlapped(self) -> None:
        if _OVERLAPPED not in self.trace.unseen:
            self.trace.unseen.append(_OVERLAPPED)

    def ended(self, record: Record) -> None:
        if record.unnamed:
            self._name_events(record, self.name(record) if record.optimizer() is not None else NO_OPTIMIZER)
        self._notice_a_move(record)
        if record.moved and not record.steps:
            self._not_seen(
                record, "the weights changed without a step that can be seen, as in torch.compile or by hand"
            )
        if record.foreign:
            came = f"the gradients of {record.foreign} of {len(record.steps)} steps came from no backward call that was"
            self._not_seen(record, f"{came} seen, as with torch.autograd.grad")

    def _add_changes(self, record: Record, window: int) -> None:
        for kind in sorted(record.gradients.note_changes(), reverse=True):
            self._add(kind, record, window)

    def _not_seen(self, record: Record, what: str) -> None:
        self.trace.unseen.append(f"{record.name}: {what}")

    def _notice_a_move(self, record: Record) -> None:
        now = record.gradients.weight_versions()
        record.moved |= record.weights not in (None, now)
        record.weights = now

    def _add(self, kind: str, record: Record, window: int) -> None:
        name, norm = self.name(record), hypot(*record.gradients.norms.values())
        if record.unnamed:
            self._name_events(record, name)
        self.trace.records.setdefault(name, record)
        self.trace.events.append(Event(kind, name, norm, record.in_grad.total, window))

    def _name_events(self, record: Record, name: str) -> None:
        for place in record.unnamed:
            self.trace.events[place] = self.trace.events[place]._replace(lane=name)
        record.unnamed.clear()


def _norms(gradients: list[Tensor | None]) -> list[float]:
    """The norm of each, or 0; read together, since each read waits for the device."""
    norms, together = [0.0] * len(gradients), defaultdict(list)
    for place, grad in enumerate(gradients):
        if grad is not None:
            norm = torch.linalg.vector_norm(dense(grad))
            together[norm.device, norm.dtype].append((place, norm))
    for pairs in together.values():
        places, found = zip(*pairs, strict=True)
        for place, norm in zip(places, torch.stack(found).tolist(), strict=True):
            norms[place] = norm
    return norms


def dense(grad: Tensor) -> Tensor:
    values = grad if type(grad) is Tensor else local(grad)
    if values.is_meta:
        return torch.tensor(float("nan"), device="cpu")  # there are no numbers
    if values.is_sparse:
        values = values.detach().coalesce().values()
    return values.detach() if values.requires_grad else values
