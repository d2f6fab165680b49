"""What a training loop did, in order: seen by hooks and by state, without a change to its code. Needs torch alone.

PyTorch has hooks for forward passes, for gradients that arrive and for steps, but none for zeroing. It needs none: a
gradient that was there and is `None` or zero at the next event has been zeroed in between, by whatever means.
"""

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from math import hypot
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

NO_OPTIMIZER = "no optimizer"
_LETTERS = {"forward": "f", "backward": "b", "step": "S", "zero": "z", "change": "c"}


class Event(NamedTuple):
    """One thing that happened on one lane.

    `kind` is "forward" (a module that is not inside another one was called), "backward" (one backward call brought
    gradients), "step", "zero" (gradients became `None` or zero) or "change" (someone wrote to them: clipping, say).
    `norm` is the Euclidean norm of all `.grad` of the lane after the event; for a step, the norm that it used.
    """

    kind: str
    lane: str
    norm: float


@dataclass
class Trace:
    """The events of a loop, in order, on one lane per optimizer.

    Parameters that receive gradients and belong to no optimizer have a lane of their own, "no optimizer".
    `print(trace)` gives one line per lane: f forward, b backward, c change, S step, z zero.
    """

    events: list[Event] = field(default_factory=list)

    @property
    def lanes(self) -> list[str]:
        """The names of the lanes, in order of appearance."""
        return list(dict.fromkeys(event.lane for event in self.events))

    def on(self, lane: str | None = None) -> list[Event]:
        """The events of one lane; without a name, of the first."""
        lane = lane if lane is not None else next(iter(self.lanes), None)
        if lane is not None and lane not in self.lanes:
            raise ValueError(f"no lane {lane!r} in this trace, only {self.lanes}")
        return [event for event in self.events if event.lane == lane]

    def windows(self, lane: str | None = None) -> list[int]:
        """For each step, how many micro-batches' gradients it used: the backward calls since the last zeroing.

        A right loop with four micro-batches per update gives `[4, 4, 4]`; one that never zeroes `[4, 8, 12]`; one
        that zeroes before it steps `[0, 0, 0]`.
        """
        held, windows = 0, []
        for event in self.on(lane):
            held = _held_after(event, held)
            if event.kind == "step":
                windows.append(held)
        return windows

    def leftover(self, lane: str | None = None) -> int:
        """How many micro-batches' gradients are still in `.grad` at the end and were never used by a step."""
        unused = 0
        for event in self.on(lane):
            unused = 0 if event.kind == "step" else _held_after(event, unused)
        return unused

    def __str__(self) -> str:
        width = max(map(len, self.lanes), default=0)
        return "\n".join(
            f"{lane:{width}}  {' '.join(_LETTERS[event.kind] for event in self.on(lane))}" for lane in self.lanes
        )

    def __repr__(self) -> str:
        return f"<Trace of {len(self.events)} events on {len(self.lanes)} lanes>"


def _held_after(event: Event, held: int) -> int:
    if event.kind == "backward":
        return held + 1
    return 0 if event.kind == "zero" and event.norm == 0 else held


@contextmanager
def record() -> Iterator[Trace]:
    """Records what any training loop inside the block does. The loop's code stays as it is.

    Optimizers that exist already and optimizers that the block makes are both seen. Everything is detached when the
    block ends, also by an exception or an interrupt.

    **Yields:** a `Trace`, complete when the block has ended.

    >>> model = nn.Linear(2, 1)
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
    recorder = _Recorder()
    with recorder.attached:
        recorder.attach()
        try:
            yield recorder.trace
        finally:
            recorder.look()


class _Lane:
    def __init__(self, kind: str):
        self.kind = kind
        self.name = ""  # given with the first event, so that optimizers that do nothing take no name
        self.parameters: dict[int, Tensor] = {}
        self.received = False  # a gradient, in the backward call that is running


class _Seen(NamedTuple):
    """A parameter's `.grad` as last seen; `holds`: something has come into it since it was last zeroed."""

    grad: Tensor | None = None
    version: int = 0
    norm: float = 0.0
    holds: bool = False


class _Recorder:
    """Keeps the trace: attaches the hooks, and at every event looks at what has become of each `.grad`."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.attached = ExitStack()
        self.lanes: dict[int, _Lane] = {}  # by the id of the optimizer, which `kept` holds alive
        self.orphans = _Lane(NO_OPTIMIZER)
        self.kept: list[Optimizer] = []
        self.hooked: set[int] = set()
        self.seen: dict[int, _Seen] = {}  # by the id of the parameter, which a lane holds alive
        self.backward_depth = 0
        self.forward_depth = 0

    # What is attached, and detached by `attached`.

    def attach(self) -> None:
        for handle in (
            register_module_forward_pre_hook(self.before_forward),
            register_module_forward_hook(self.after_forward, always_call=True),
            register_optimizer_step_pre_hook(self.before_step),
            register_optimizer_step_post_hook(self.after_step),
        ):
            self.attached.callback(handle.remove)
        self._patch(Optimizer, "add_param_group", self._see_groups)
        self._patch(torch.autograd, "backward", self._see_backward)
        for thing in gc.get_objects():
            if issubclass(type(thing), Optimizer) and hasattr(thing, "param_groups"):
                self.know(thing)

    def _patch(self, owner: object, name: str, around) -> None:
        original = getattr(owner, name)
        setattr(owner, name, wraps(original)(around(original)))
        self.attached.callback(setattr, owner, name, original)

    def _see_groups(self, add_param_group):
        def with_lane(optimizer, *args, **kwargs):
            add_param_group(optimizer, *args, **kwargs)
            self.know(optimizer)

        return with_lane

    def _see_backward(self, backward):
        def between(*args, **kwargs):
            if self.backward_depth == 0:
                self.look()
            self.backward_depth += 1
            try:
                return backward(*args, **kwargs)
            finally:
                self.backward_depth -= 1
                if self.backward_depth == 0:  # a checkpoint runs a backward inside the backward: the same call
                    self.close_backward()

        return between

    # Who is watched.

    def know(self, optimizer: Optimizer) -> _Lane:
        if id(optimizer) not in self.lanes:
            self.kept.append(optimizer)
            self.lanes[id(optimizer)] = _Lane(type(optimizer).__name__)
        lane = self.lanes[id(optimizer)]
        self.watch(lane, [p for group in optimizer.param_groups for p in group["params"]])
        for key in lane.parameters.keys() & self.orphans.parameters.keys():
            del self.orphans.parameters[key]
        return lane

    def watch(self, lane: _Lane, parameters) -> None:
        for p in parameters:
            if id(p) not in lane.parameters:
                lane.parameters[id(p)] = p
                if id(p) not in self.seen:
                    self._fate(p)
            if p.requires_grad and id(p) not in self.hooked:  # one that was frozen is hooked once it is not
                self.hooked.add(id(p))
                self.attached.callback(p.register_post_accumulate_grad_hook(self.received).remove)

    @property
    def all_lanes(self) -> list[_Lane]:
        return [*self.lanes.values(), self.orphans]

    # What is seen.

    def before_forward(self, module: nn.Module, _inputs) -> None:
        self.forward_depth += 1
        if self.forward_depth > 1 or self.backward_depth:
            return
        self.look()
        for optimizer in self.kept:
            self.know(optimizer)
        parameters = {id(p): p for p in module.parameters()}
        owned = {key for lane in self.lanes.values() for key in lane.parameters}
        self.watch(self.orphans, [p for key, p in parameters.items() if key not in owned and p.requires_grad])
        for lane in self.all_lanes:
            if lane.parameters.keys() & parameters.keys():
                self.add("forward", lane)

    def after_forward(self, *_) -> None:
        self.forward_depth = max(0, self.forward_depth - 1)

    def received(self, p: Tensor) -> None:
        """A gradient has been added to `p.grad`."""
        for lane in self.all_lanes:
            lane.received |= id(p) in lane.parameters

    def close_backward(self) -> None:
        for lane in self.all_lanes:
            if lane.received:
                lane.received = False
                for p in lane.parameters.values():
                    self._fate(p, received=True)
                self.add("backward", lane)

    def before_step(self, optimizer: Optimizer, args, kwargs) -> None:
        lane = self.know(optimizer)
        self.look()
        if not _has_closure(args, kwargs):
            self.add("step", lane)

    def after_step(self, optimizer: Optimizer, args, kwargs) -> None:
        self.look()
        if _has_closure(args, kwargs):  # its backward calls came during the step
            self.add("step", self.lanes[id(optimizer)])

    def look(self) -> None:
        """What has happened to the gradients since the last event: nothing, zeroed, or changed."""
        if not self.backward_depth:
            self.close_backward()  # of a backward that did not come through torch.autograd.backward
        parameters = {key: p for lane in self.all_lanes for key, p in lane.parameters.items()}
        fates = {key: self._fate(p) for key, p in parameters.items()}
        for lane in self.all_lanes:
            kinds = {fates[key] for key in lane.parameters}
            for kind in ("zero", "change"):
                if kind in kinds:
                    self.add(kind, lane)

    def _fate(self, p: Tensor, received: bool = False) -> str:
        """Looks at `p.grad`: has it been zeroed, changed, or is it the same as when last seen?"""
        grad, before = p.grad, self.seen.get(id(p), _Seen())
        version, norm = (0, 0.0) if grad is None else (grad._version, _norm(grad))
        # A write through .data raises no version, but the norm shows it; the norm alone does not show a new nan.
        same = grad is before.grad and version == before.version and (norm == before.norm or norm != norm)
        holds = grad is not None and (received or norm != 0 or (same and before.holds))
        self.seen[id(p)] = _Seen(grad, version, norm, holds)
        if same:
            return "same"
        if norm == 0:
            return "zero" if before.holds else "same"
        return "change"

    def add(self, kind: str, lane: _Lane) -> None:
        if not lane.name:
            same = sum(other.kind == lane.kind and bool(other.name) for other in self.all_lanes)
            lane.name = f"{lane.kind} {same + 1}" if same else lane.kind
        norm = hypot(*(self.seen[key].norm for key in lane.parameters))
        self.trace.events.append(Event(kind, lane.name, norm))


def _has_closure(args: tuple, kwargs: dict) -> bool:
    return kwargs.get("closure", args[1] if len(args) > 1 else None) is not None


def _norm(gradient: Tensor) -> float:
    values = gradient.detach()
    values = values.coalesce().values() if values.is_sparse else values
    return float(torch.linalg.vector_norm(values))
