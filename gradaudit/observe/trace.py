"""What a training loop did, in order. `record()` keeps it with the norms of the gradients; the audit, without."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import hypot, isnan
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradaudit.observe.observer import NO_OPTIMIZER, Lane, Listener, Observer, local, observing

_LETTERS = {"forward": "f", "backward": "b", "step": "S", "zero": "z", "change": "c"}


class Event(NamedTuple):
    """One thing that happened on one lane.

    Args:
        kind: "forward" (a module that is not inside another one was called), "backward" (one backward call brought
            gradients), "step", "zero" (gradients became `None` or zero) or "change" (someone wrote to them: clipping).
        lane: The name of the lane.
        norm: The Euclidean norm of all `.grad` of the lane after the event; for a step, the norm that it used. None
            where nobody measured it.
        held: Backward calls whose gradients are in `.grad` after the event; for a step, how many it used.
    """

    kind: str
    lane: str
    norm: float | None = None
    held: int = 0


@dataclass
class Trace:
    """The events of a loop, in order, on one lane per optimizer.

    Parameters that receive gradients and belong to no optimizer have a lane of their own, "no optimizer".
    `print(trace)` gives one line per lane: f forward, b backward, c change, S step, z zero.

    Args:
        events: The events, if there are some already.

    Attributes:
        unseen: What could not be seen, in sentences; empty if nothing is missing as far as anyone can tell.
    """

    events: list[Event] = field(default_factory=list)
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
        if lane is None:
            steps = (event.lane for event in self.events if event.kind == "step")
            lane = next(steps, next(iter(self.lanes), None))
        elif lane not in self.lanes:
            raise ValueError(f"no lane {lane!r} in this trace, only {self.lanes}")
        return [event for event in self.events if event.lane == lane]

    def windows(self, lane: str | None = None) -> list[int]:
        """For each step, how many micro-batches' gradients it used: the backward calls since the last zeroing.

        A correct loop with four micro-batches per update gives `[4, 4, 4]`; one that never zeroes `[4, 8, 12]`; one
        that zeroes before it steps `[0, 0, 0]`. With two losses per micro-batch, and a backward call for each, four
        micro-batches give 8. Steps and gradients that `unseen` names are missing here.

        Args:
            lane: As for `on()`.
        """
        return [event.held for event in self.on(lane) if event.kind == "step"]

    def leftover(self, lane: str | None = None) -> int:
        """How many micro-batches' gradients are still in `.grad` at the end and were never used by a step.

        Args:
            lane: As for `on()`.
        """
        unused = 0
        for event in self.on(lane):
            if event.kind == "backward":
                unused += 1
            elif event.kind == "step" or event.held == 0:
                unused = 0
        return unused

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

    Optimizers that exist already and optimizers that the block creates are both seen. Everything is detached when the
    block ends, also by an exception or an interrupt. A write through `.data` leaves no mark on a tensor: unless it
    zeroes the gradients, it shows only at the next step. If the record itself fails, it ends with a warning
    (`ObserverFailure`), and the loop goes on.

    Backward calls are counted, so two losses per micro-batch with a call each count twice. A step inside
    `torch.compile` isn't seen, nor are gradients from elsewhere, as from `torch.autograd.grad`: `trace.unseen` says so.

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
    writer = _TraceWriter()
    with observing(writer):
        yield writer.trace


class _MeasuredLane(Lane):
    per_parameter = (*Lane.per_parameter, "norms", "holds")

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.norms: list[float] = []
        self.holds: list[bool] = []  # has anything come into .grad since it was last zeroed?
        self.unnamed: list[int] = []  # the places of its events from before it had a name
        self.steps = self.foreign = 0  # steps, and those of them whose gradients came from no backward call
        self.weights: int | None = None  # their version at the last backward call
        self.moved = False  # have they changed since a backward call?

    def add(self, p: Tensor) -> None:
        super().add(p)
        self.norms += _norms([p.grad])
        self.holds.append(self.norms[-1] != 0)

    def measure(self, places: Sequence[int]) -> None:
        for place, norm in zip(places, _norms([self.parameters[place].grad for place in places]), strict=True):
            self.norms[place] = norm


class _TraceWriter(Listener):
    """Measures norms, where something has changed and where a step uses them, and writes a trace."""

    who = "record()"
    lane_type = _MeasuredLane

    def __init__(self) -> None:
        self.trace = Trace()

    def attach(self, observer: Observer) -> None:
        self.name = observer.name

    def forward(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            self.trace.events.append(Event("forward", lane.name or lane.kind, hypot(*lane.norms), lane.held))
            if not lane.name:
                lane.unnamed.append(len(self.trace.events) - 1)  # after the event, or an interrupt leaves none there

    def received(self, lane: Lane, call: Any) -> None:
        self._notice_a_move(lane)
        lane.measure(lane.touched)
        for place in lane.touched:
            lane.holds[place] = True
        self._add("backward", lane, lane.held)

    def zeroed(self, lane: Lane) -> None:
        self._add_changes(lane, held=0)

    def changed(self, lane: Lane, assigned: bool) -> None:
        self._add_changes(lane, lane.held)

    def stepped(self, lane: Lane, skipped: bool) -> None:
        lane.touched = []
        self._add_changes(lane, lane.held)  # GradScaler.unscale_ and writes through .data raise no version
        if not skipped:
            lane.steps += 1
            lane.foreign += not (lane.held or lane.empty)
            self._add("step", lane, lane.held)

    def _add_changes(self, lane: Lane, held: int) -> None:
        kinds, touched, norms = set(), lane.touched, list(lane.norms)
        places = touched or range(len(norms))
        lane.measure(places)
        for place in places:
            before, norm = norms[place], lane.norms[place]
            if not touched and (norm == before or (isnan(norm) and isnan(before))):
                continue
            if norm:
                kinds.add("change")
            elif lane.holds[place]:
                kinds.add("zero")
            lane.holds[place] = bool(norm)
        for kind in sorted(kinds, reverse=True):
            self._add(kind, lane, held)

    def ended(self, lane: Lane) -> None:
        if lane.unnamed:
            self._name_events(lane, self.name(lane) if lane.optimizer() is not None else NO_OPTIMIZER)
        self._notice_a_move(lane)
        if lane.moved and not lane.steps:
            self._not_seen(lane, "the weights changed without a step that can be seen, as in torch.compile or by hand")
        if lane.foreign:
            came = f"the gradients of {lane.foreign} of {lane.steps} steps came from no backward call that was seen"
            self._not_seen(lane, f"{came}, as with torch.autograd.grad")

    def _not_seen(self, lane: Lane, what: str) -> None:
        self.trace.unseen.append(f"{lane.name}: {what}")

    def _notice_a_move(self, lane: Lane) -> None:
        now = lane.weight_versions()
        lane.moved |= lane.weights not in (None, now)
        lane.weights = now

    def _add(self, kind: str, lane: Lane, held: int) -> None:
        name = self.name(lane)
        if lane.unnamed:
            self._name_events(lane, name)
        self.trace.events.append(Event(kind, name, hypot(*lane.norms), held))

    def _name_events(self, lane: Lane, name: str) -> None:
        for place in lane.unnamed:
            self.trace.events[place] = self.trace.events[place]._replace(lane=name)
        lane.unnamed.clear()


def _norms(gradients: list[Tensor | None]) -> list[float]:
    """The norm of each; 0 where there is none. They are read together, since each read waits for the device."""
    norms, together = [0.0] * len(gradients), defaultdict(list)
    for place, grad in enumerate(gradients):
        if grad is not None:
            norm = torch.linalg.vector_norm(_values(grad))
            together[norm.device, norm.dtype].append((place, norm))
    for pairs in together.values():
        places, found = zip(*pairs, strict=True)
        for place, norm in zip(places, torch.stack(found).tolist(), strict=True):
            norms[place] = norm
    return norms


def _values(grad: Tensor) -> Tensor:
    values = grad if type(grad) is Tensor else local(grad)
    if values.is_meta:
        return torch.tensor(float("nan"), device="cpu")  # there are no numbers
    if values.is_sparse:
        values = values.detach().coalesce().values()
    return values.detach() if values.requires_grad else values
