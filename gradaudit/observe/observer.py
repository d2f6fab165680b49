"""Watches any training loop while it runs, without a change to its code, and tells a listener what happens.

Every hook and every patch of the course's instruments is attached here, and detached again however the block ends:

- a step is seen by the hooks that PyTorch runs around every `optimizer.step`;
- a backward call is seen because `torch.autograd.backward` is wrapped;
- no error of the instruments' own reaches the script: all of their code is called by a `Guard`;
- everything else that happens to gradients is seen by comparison. PyTorch has no hook for zeroing, and none is needed:
  each tensor has a version, which rises with every write, so comparing which tensor `.grad` is, and its version, with
  the last time shows whether anything was zeroed, clipped or assigned in between. This computes nothing. Values are
  read only where gradients may have been zeroed through `.data`, which raises no version: always after a step, and
  inside the first windows, some later ones, and all of them once that has happened.
"""

import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache, reduce, wraps
from itertools import compress
from operator import attrgetter, is_
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gradaudit.interrupts import uninterrupted
from gradaudit.observe.guard import Guard
from gradaudit.observe.sharded import Shard, is_sharded, keepers, shards
from gradaudit.observe.uncompiled import leave_uncompiled

NO_OPTIMIZER = "no optimizer"
_READ, _READ_EVERY = 20, 17  # windows in which values are read: the first, and then some
_SMALL = 10_000  # a gradient with fewer numbers is read whole at once
_NONE = id(None)
_grad, _version, _unused = attrgetter("grad"), attrgetter("_version"), attrgetter("unused")


class Lane:
    """One optimizer: its parameters, and what was last seen of their gradients."""

    per_parameter = ("parameters", "seen", "versions", "ever")  # lists with one entry for each parameter

    def __init__(self, optimizer: Optimizer | None, died: Callable[[ref], None] | None = None):
        self.manual = False  # has it no optimizer, and can its listener tell when something else uses its gradients?
        self.optimizer = (lambda: None) if optimizer is None else ref(optimizer, died)  # a loop may drop its optimizers
        self.kind = type(optimizer).__name__
        self.name = "" if optimizer is not None else NO_OPTIMIZER  # the observer names a lane when it is first used
        self.parameters: list[Tensor] = []
        self.ids: set[int] = set()
        self.listed: list[Tensor] = []  # what the optimizer held at the last update
        self.sharded = False  # is any parameter a DTensor, or kept by FSDP?
        self.shards: dict[int, Shard] = {}  # of the parameters that FSDP keeps, by their ids
        self.waits = False  # did the last comparison find gradients that wait for the other ranks?
        self.seen: list[int | tuple[int, ...]] = []  # the id of each .grad, which is not kept alive, or of its shards
        self.versions: list[int | tuple[int, ...]] = []
        self.ever: list[bool] = []  # has this parameter ever had a gradient?
        self.touched: list[int] = []  # the places of the gradients that the last comparison found written or replaced
        self.replaced = False  # the last comparison found other tensors, or none any more, not only new versions
        self.put = False  # it found other tensors
        self.empty = True  # no gradients, or nothing but zeros
        self.came_as_zeros = False  # the backward calls themselves brought nothing but zeros
        self.uncleared: list[int] = []  # the places that kept what a step had used when the others were zeroed
        self.held = 0  # backward calls whose gradients are in .grad
        self.unused = 0  # those of them that no step has used
        self.depth = 0  # of the step that is running: a step may call the step that it inherits
        self.in_closure = False
        self.unversioned = False  # was anything written that raised no version?
        self.filled = 0  # windows that a backward call has begun
        self.is_read = True  # are values read in this one? Zeros may be written without a version, but reading is slow
        self.evaluation: int | None = None  # how often the step that is running has called its closure, if it has one

    @property
    def inside_its_step(self) -> bool:
        """Does the optimizer's own code run, and not a closure that the script gave it?"""
        return self.depth > 0 and not self.in_closure

    def update(self) -> None:
        """Adds the parameters that the optimizer holds by now, and lets go of those that it doesn't hold any more."""
        optimizer, known = self.optimizer(), len(self.parameters)
        if optimizer is None:
            return
        listed: list[Tensor] = []
        for group in optimizer.param_groups:
            listed += group["params"]
        if len(listed) == len(self.listed) and all(map(is_, listed, self.listed)):  # as in most calls
            return
        self.listed = listed
        for p in listed:
            if id(p) not in self.ids:
                self.add(p)
        if len(listed) < len(self.ids):
            self.let_go(set(map(id, listed)))
        if self.sharded and len(self.parameters) > known:
            found = shards(living(*keepers()))
            self.shards = {key: found[key] for key in self.ids & found.keys()}
            self.compare()

    def add(self, p: Tensor) -> None:
        self.ids.add(id(p))
        self.parameters.append(p)
        self.sharded |= is_sharded(p)
        grad = p.grad
        self.seen.append(id(grad))
        self.versions.append(0 if grad is None else version(grad))
        self.ever.append(False)
        self.empty &= grad is None

    def let_go(self, stays: set[int]) -> None:
        """A script has put other parameters in the place of some, as where points are added to a scene."""
        self.discard(self.ids - stays)
        if self.without_gradients:
            self.empty, self.held, self.unused = True, 0, 0

    def discard(self, ids: set[int]) -> None:
        stays = [id(p) not in ids for p in self.parameters]
        for name in self.per_parameter:
            setattr(self, name, list(compress(getattr(self, name), stays)))
        self.ids -= ids

    @property
    def without_gradients(self) -> bool:
        return self.seen.count(_NONE) == len(self.seen)

    def compare(self) -> bool:
        """Notes which gradients have been written or replaced since the last comparison. Were there any?"""
        if self.sharded:
            seen, versions = self._look_at_shards()
        else:
            seen, versions = [], []  # a loop makes fewer calls than comprehensions, and takes half the time of map()
            for grad in map(_grad, self.parameters):
                seen.append(id(grad))
                versions.append(0 if grad is None else grad._version)
        self.replaced = seen != self.seen
        if not self.replaced and versions == self.versions:
            self.touched, self.put = [], False
            return False
        self.touched, self.put = [], False
        for place, now in enumerate(seen):
            if now != self.seen[place]:
                self.put |= now != _NONE
            elif versions[place] == self.versions[place]:
                continue
            self.touched.append(place)
            self.ever[place] |= now != _NONE
        self.seen, self.versions = seen, versions
        return True

    def _look_at_shards(self) -> tuple[list, list]:
        self.waits = False
        found = list(map(self.sharded_gradients, self.parameters))
        return (
            [tuple(map(id, gradients)) or _NONE for gradients in found],
            [tuple(map(version, gradients)) or 0 for gradients in found],
        )

    def sharded_gradients(self, p: Tensor) -> list[Tensor]:
        """The gradient of a parameter, and those that FSDP will add to it."""
        if id(p) not in self.shards:
            return [] if p.grad is None else [p.grad]
        gradients, waits = self.shards[id(p)].read(p)
        self.waits |= waits
        return gradients

    def left_uncleared(self) -> list[int]:
        """After a step: the places that still hold gradients, if the last comparison found others zeroed."""
        if self.unused or not (self.held or self.uncleared):
            return []
        touched, parameters = set(self.touched), self.parameters
        if not all(self.is_zero(parameters[place]) for place in touched):
            return []
        return [k for k, p in enumerate(parameters) if k not in touched and not self.is_zero(p)]

    def is_zero(self, p: Tensor) -> bool:
        """Holds the parameter no gradient, or one of zeros?"""
        return not any(map(any_nonzero, self.sharded_gradients(p))) if self.sharded else is_zero(p.grad)

    def all_zero(self) -> bool:
        if self.sharded:
            return all(map(self.is_zero, self.parameters))
        for grad in map(_grad, self.parameters):  # noqa: SIM110
            if grad is not None and any_nonzero(grad):
                return False
        return True

    def weight_versions(self) -> int:
        """A number that rises with every write to a parameter."""
        return sum(map(version if self.sharded else _version, self.parameters))


class Listener:
    """What an observer can tell. A listener overrides what it needs to hear; the other methods do nothing."""

    who = "The observer"  # in the words of a warning
    lane_type = Lane  # may have more to note for each optimizer
    kinds: tuple[type, ...] = ()  # what to find, besides optimizers, when the block begins
    hears_zeroing_at_once = True  # else at the next event, if it was of gradients that a step has used

    def attach(self, observer: "Observer") -> None:
        """The block begins. Further functions may be wrapped with `observer.patch`."""

    def found(self, thing: Any) -> None:
        """An object of one of these kinds was there when the block began."""

    def forward(self, lanes: list[Lane]) -> None:
        """A module that is not inside another one was called, which has parameters on these lanes."""

    def backward_begins(self, roots: list[Tensor], given: bool) -> object:
        """Returns something that stands for the call. `given`: gradients of the roots were passed."""
        return True

    def received(self, lane: Lane, call: Any) -> None:
        """A backward call has added to the lane's gradients."""

    def graph_kept(self, roots: list[Tensor], call: Any) -> None:
        """A backward call leaves its graph for further calls."""

    def backward_ends(self, call: Any) -> None:
        pass

    def wrote(self, lane: Lane) -> bool:
        """Has something used the gradients of a manual lane, and written to its parameters, since the last look?"""
        return False

    def zeroed(self, lane: Lane) -> None:
        """All gradients of the lane are `None` or zero now. `lane.held` and `lane.unused` still say what was lost."""

    def zeroed_in_part(self, lane: Lane) -> None:
        """After a step, only a part of the gradients was zeroed: not those at the places `lane.uncleared`."""
        self.changed(lane, assigned=False)

    def changed(self, lane: Lane, assigned: bool) -> None:
        """Something else was written to gradients. `assigned`: they have come from elsewhere than a backward call."""

    def stepped(self, lane: Lane, skipped: bool) -> None:
        """An optimizer uses what it holds, or has used it if it called a closure. `skipped`: it found an overflow."""

    def ended(self, lane: Lane) -> None:
        """The lane's optimizer has died, or the block ends."""

    def overlapped(self) -> None:
        """Backward calls of several threads overlap, so that who received what cannot be told apart."""

    def gave_up(self, failure: str) -> None:
        """The observer, or this listener, has failed, and nothing more will be told."""


@contextmanager
def observing(listener: Listener) -> Iterator[None]:
    """Tells the listener what the training loops inside the block do. Blocks may be nested, and may overlap.

    An error of the listener, or of the observer, is no error of the block's: it ends the watching with an
    `ObserverFailure`, which is a warning.

    Args:
        listener: Its methods are called as things happen.

    Example:
        >>> class Steps(Listener):
        ...     def stepped(self, lane, skipped):
        ...         print(lane.name, "uses", lane.held, "backward calls")
        >>> w = torch.ones(2, requires_grad=True)
        >>> optimizer = torch.optim.SGD([w], lr=0.1)
        >>> with observing(Steps()):
        ...     w.sum().backward()
        ...     optimizer.step()
        SGD uses 1 backward calls
    """
    observer = Observer(listener)
    try:
        with uninterrupted():
            observer.guard(observer.attach)()
        yield
    finally:
        try:
            with uninterrupted():
                observer.finish()
        except KeyboardInterrupt:
            observer.finish()  # it may have come just before
            raise


class _Thread(threading.local):
    """What a thread of the script is in the middle of."""

    def __init__(self) -> None:
        self.depth = 0  # of the module that is being called
        self.probes: list = []  # hooks for one backward call


class Observer:
    """Finds the optimizers, attaches the hooks and patches, and turns what they see into calls of the listener."""

    def __init__(self, listener: Listener) -> None:
        self.listener, self.hears_zeroing_at_once = listener, listener.hears_zeroing_at_once
        self.guard = Guard(listener.who, "your script goes on unwatched", self._give_up)
        self.undo = ExitStack()
        self.lanes: dict[int, Lane] = {}  # by the id of the optimizer
        self.without_optimizer = listener.lane_type(None)
        self.manual: list[Lane] = []  # lanes that the listener has added
        self.active: list[Lane] = []  # all lanes; replaced, never changed, since threads go through it
        self.died = False  # has an optimizer died since the last look?
        self.names: Counter[str] = Counter()
        self.running: dict[int, Any] = {}  # backward calls, by thread
        self.options = (None, None)  # retain_graph and create_graph of the last backward call
        self.thread = _Thread()

    def attach(self) -> None:
        leave_uncompiled("gradaudit", "course_utils.recording")
        self.undo.callback(register_optimizer_step_pre_hook(self.guard(self._before_step)).remove)
        self.undo.callback(register_optimizer_step_post_hook(self.guard(self._after_step)).remove)
        self.patch(torch.autograd, "backward", self._around_backward, used_up=True)
        self.patch(Optimizer, "add_param_group", after(self.lane_of))
        self.patch(Optimizer, "zero_grad", self._around_zero_grad)
        self.patch(nn.Module, "zero_grad", after(lambda _: self.look()))
        if type(self.listener).forward is not Listener.forward:  # these hooks cost every call of every module
            self.undo.callback(register_module_forward_pre_hook(self.guard(self._before_forward)).remove)
            self.undo.callback(register_module_forward_hook(self.guard(self._after_forward), always_call=True).remove)
        self.listener.attach(self)
        used = [kind for kind in subclasses(Optimizer) if hasattr(kind.step, "hooked")]  # by its first object
        gc.collect(1)  # then all living objects are of one age, in their order; the younger would come first
        for thing in living(*used, *self.listener.kinds):
            if isinstance(thing, Optimizer):
                self.lane_of(thing)
            else:
                self.listener.found(thing)

    def patch(
        self,
        owner: object,
        name: str,
        watch: Callable[..., Generator],
        warns: bool = False,
        used_up: bool = False,
    ) -> None:
        """Until the block ends, each call of `owner.name` is watched by a generator, as `Guard.around` says.

        `warns`: the original warns about its caller.
        """
        self.undo.callback(_patch(owner, name, self.guard.around(watch, used_up), warns))

    def probe(self, register: Callable, note: Callable) -> None:
        """Registers a hook for as long as this thread's backward call runs."""
        self.thread.probes.append(register(self.guard(note)))

    def finish(self) -> None:
        try:
            self.guard(self._end_lanes)()
        finally:
            self._let_go()
            try:
                self.undo.close()
            except Exception as error:
                self.guard.fail(error)

    def _end_lanes(self) -> None:
        self.look(values=True)
        for lane in (*self.lanes.values(), *self.manual):
            self.listener.ended(lane)

    def _let_go(self) -> None:
        """Keeps nothing of the script's alive any more."""
        self.lanes.clear()
        self.active, self.manual = [], []

    def _give_up(self, failure: str) -> None:
        self._let_go()
        self.listener.gave_up(failure)

    # Lanes

    def lane_of(self, optimizer: Optimizer) -> Lane | None:
        """The optimizer's lane. Wrappers, as frameworks put around an optimizer, have none: what they wrap steps."""
        lane = self.lanes.get(id(optimizer))
        if lane is None or lane.optimizer() is not optimizer:
            if not hasattr(type(optimizer).step, "hooked") or not hasattr(optimizer, "param_groups"):
                return None
            if lane is not None:  # of a dead optimizer that lay at the same address
                self.listener.ended(lane)
            lane = self.lanes[id(optimizer)] = self.listener.lane_type(optimizer, self.note_death)
            self._list_lanes()
        lane.update()
        if self.without_optimizer.parameters:
            self.without_optimizer.discard(lane.ids)
        for other in self.manual:
            if not other.ids.isdisjoint(lane.ids):
                other.discard(lane.ids)
                if not other.ids and not other.name:  # nothing can happen to it any more, and each look takes time
                    self.manual = [manual for manual in self.manual if manual is not other]
                    self._list_lanes()
        return lane

    def add_manual_lane(self, lane: Lane) -> None:
        self.manual = [*self.manual, lane]
        self._list_lanes()

    def _list_lanes(self) -> None:
        orphans = [self.without_optimizer] if self.without_optimizer.parameters else []
        self.active = [*self.lanes.values(), *self.manual, *orphans]

    def note_death(self, _) -> None:
        """Of an optimizer, or of a parameter of a manual lane."""
        self.died = True

    def _end_dead_lanes(self) -> None:
        self.died = False
        for key, lane in list(self.lanes.items()):
            if lane.optimizer() is None:
                self.lanes.pop(key, None)
                self._look_at(lane)
                self.listener.ended(lane)
        for lane in self.manual:
            if not lane.parameters:
                self.listener.ended(lane)
        self.manual = [lane for lane in self.manual if lane.parameters]
        self._list_lanes()

    def name(self, lane: Lane) -> str:
        """Lanes are named in the order in which gradients come to them, and those that do nothing take no name."""
        if not lane.name:
            self.names[lane.kind] += 1
            number = self.names[lane.kind]
            lane.name = f"{lane.kind} {number}" if number > 1 else lane.kind
        return lane.name

    # Between the events

    def look(self, values: bool = False) -> None:
        """What has happened to the gradients since the last event? Inside a backward call this cannot be told.

        Args:
            values: Also read values: old code zeroes through `.data`, which raises no version.
        """
        if self.running:
            if self.inside() is None:
                self.listener.overlapped()
            return
        if self.died:
            self._end_dead_lanes()
        alive = self._see_manual_steps() if self.manual else None  # until this look has ended
        for lane in self.active:
            if not lane.manual or lane.parameters:
                self._look_at(lane, values)
        del alive

    def _see_manual_steps(self) -> list[list[Tensor]]:
        alive = [lane.parameters for lane in self.manual]
        for lane in self.manual:
            if lane.unused and self.listener.wrote(lane):
                self.step(lane)
        return alive

    def overlook(self) -> None:
        """What has been written to gradients since the last event is no change by the script."""
        if not self.running:
            for lane in self.active:
                lane.compare()

    def _look_at(self, lane: Lane, values: bool = False) -> None:
        if not lane.compare():
            if not values:
                return
            if lane.empty:
                if not (lane.without_gradients or lane.all_zero()):
                    lane.empty, lane.unversioned = False, True
                    self.listener.changed(lane, assigned=True)
            elif lane.held and not lane.came_as_zeros and (lane.is_read or not lane.unused) and lane.all_zero():
                lane.unversioned = True
                self._zeroed(lane)
            return
        was_empty, lane.empty = lane.empty, lane.without_gradients or lane.all_zero()
        if lane.empty:
            self._zeroed(lane)
        elif uncleared := lane.left_uncleared():
            lane.uncleared, lane.held = uncleared, 0
            self.listener.zeroed_in_part(lane)
        else:
            assigned = was_empty or (lane.replaced and not lane.unused)
            if assigned:
                lane.held, lane.uncleared = lane.unused, []
            lane.came_as_zeros = False
            self.listener.changed(lane, assigned)

    def _zeroed(self, lane: Lane) -> None:
        self.listener.zeroed(lane)
        lane.held = lane.unused = 0
        lane.empty, lane.came_as_zeros, lane.uncleared = True, False, []

    def _around_zero_grad(self, optimizer: Optimizer, *args, **kwargs) -> Generator:
        yield
        if self.hears_zeroing_at_once or self.running or any(map(_unused, self.active)):
            self.look()
        if self.running and self.inside() is not None:  # an optimizer that steps and zeroes inside a backward call
            lane = self.lane_of(optimizer)
            if lane is not None:
                self._look_at(lane)

    # Forward, backward, step

    def _before_forward(self, module: nn.Module, _inputs) -> None:
        if is_dynamo_compiling():
            return
        self.thread.depth += 1
        if self.thread.depth > 1 or (self.running and self.inside() is not None):  # a checkpoint computes again
            return
        self.look(values=True)
        for lane in self.active:
            lane.update()
        parameters = {id(p): p for p in module.parameters()}
        known = set().union(*[lane.ids for lane in self.active])
        if not known.issuperset(parameters):
            for key, p in parameters.items():
                if key not in known and p.requires_grad:
                    self.without_optimizer.add(p)
            self._list_lanes()
        self.listener.forward([lane for lane in self.active if not lane.ids.isdisjoint(parameters)])

    def _after_forward(self, *_) -> None:
        if not is_dynamo_compiling():
            self.thread.depth = max(0, self.thread.depth - 1)

    def inside(self) -> Any:
        """The backward call that this thread is in the middle of, or None."""
        call = self.running.get(threading.get_ident())
        if call is None and isinstance(threading.current_thread(), threading._DummyThread):
            call = next(reversed(list(self.running.values())), None)  # a thread of autograd's own, one for each GPU
        return call

    def _around_backward(
        self,
        tensors=(),
        grad_tensors=None,
        retain_graph=None,
        create_graph=False,
        grad_variables=None,
        *args,
        **kwargs,
    ) -> Generator:
        if self.running and self.inside() is not None:  # a checkpoint runs a backward inside the backward
            return
        self.look(values=True)
        for lane in self.active:
            lane.update()
        roots = [tensors] if isinstance(tensors, Tensor) else tensors_in(tensors)
        given = grad_tensors is not None or grad_variables is not None
        self.options = retain_graph, create_graph
        me = threading.get_ident()
        try:
            call = self.listener.backward_begins(roots, given)
            if self.running:
                self.listener.overlapped()
            self.running[me] = call
            try:
                yield
            finally:
                del self.running[me]
                if self.guard.failure is None:
                    for lane in self.active:
                        self._receive(lane, call)
                    if retain_graph or create_graph:
                        self.listener.graph_kept(roots, call)
                    self.listener.backward_ends(call)
        finally:
            if probes := self.thread.probes:
                for probe in probes:
                    probe.remove()
                probes.clear()

    def _receive(self, lane: Lane, call: Any) -> None:
        """If the lane has got gradients from this backward call, it holds the call from now on."""
        if not lane.compare():
            return
        if not lane.held:
            lane.filled = filled = lane.filled + 1
            lane.is_read = filled <= _READ or filled % _READ_EVERY == 0 or lane.unversioned
        if lane.is_read and (lane.came_as_zeros or not lane.held):  # what is added to others hardly leaves zeros
            grad = lane.parameters[lane.touched[0]].grad
            on_cpu = grad is not None and grad.is_cpu  # reading values on any other device would wait for it
            lane.came_as_zeros = on_cpu and not any_nonzero(grad) and lane.all_zero()
        lane.empty = False
        lane.held += 1
        lane.unused += 1
        if not lane.in_closure:  # whatever step was running has ended, perhaps by an exception
            lane.depth, lane.evaluation = 0, None
        lane.name or lane.manual or self.name(lane)
        self.listener.received(lane, call)

    def _before_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        lane = None if is_dynamo_compiling() else self.lane_of(optimizer)
        if lane is None:
            return None
        call = self.inside() if self.running else None
        if call is not None:  # an optimizer that steps inside a backward call
            self._receive(lane, call)
        self.look(values=True)
        lane.depth += 1
        if lane.depth > 1:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            if lane.came_as_zeros:  # a step on zeros uses nothing, wherever they come from
                lane.touched = []
                self._zeroed(lane)
            found_inf = getattr(optimizer, "found_inf", None)  # set by a scaler while a fused optimizer steps
            self.step(lane, skipped=found_inf is not None and bool(found_inf))
            return None
        lane.evaluation = 0
        watched = self._watched_closure(lane, closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _watched_closure(self, lane: Lane, closure: Callable) -> Callable:
        def evaluate(*args, **kwargs):
            lane.evaluation, lane.in_closure = (lane.evaluation or 0) + 1, True
            try:
                return closure(*args, **kwargs)
            except BaseException:
                lane.depth, lane.evaluation = 0, None  # the step ends with this, and no hook will tell
                raise
            finally:
                lane.in_closure = False

        return evaluate

    def _after_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        lane = None if is_dynamo_compiling() else self.lanes.get(id(optimizer))  # known before the step
        if lane is None:
            return
        lane.depth = max(0, lane.depth - 1)
        if lane.evaluation is not None and not lane.depth:
            self.look()
            self.step(lane)
            lane.evaluation = None

    def step(self, lane: Lane, skipped: bool = False) -> None:
        lane.name or self.name(lane)
        self.listener.stepped(lane, skipped)
        lane.unused = 0
        if lane.waits:  # what no step can reach counts with this window, not once more with the next
            lane.held = 0


# Patches


class _Patch:
    """A function that stands in for an attribute and calls what its wrappers make of the original.

    Wrappers may be removed in any order. The attribute is restored with the last of them, unless the script has put
    something of its own there; code that has kept the function calls the original from then on.
    """

    def __init__(self, owner: object, name: str) -> None:
        self.owner, self.name, self.original = owner, name, vars(owner)[name]
        self.wrappers: list[Callable] = []
        self.call = self.original

        @wraps(self.original)
        def patched(*args, **kwargs):
            if is_dynamo_compiling():  # Dynamo traces what would be there without the observer
                return self.original(*args, **kwargs)
            return self.call(*args, **kwargs)

        patched.patch, self.patched = self, patched
        setattr(owner, name, patched)

    def set(self, wrappers: list[Callable]) -> None:
        self.wrappers = wrappers
        self.call = reduce(lambda call, wrapper: wrapper(call), wrappers, self.original)
        if not wrappers and vars(self.owner).get(self.name) is self.patched:
            setattr(self.owner, self.name, self.original)


def _patch(owner: object, name: str, wrapper: Callable, warns: bool = False) -> Callable[[], None]:
    """Returns what undoes it."""
    present = vars(owner)[name]
    patch = getattr(present, "patch", None)
    if not isinstance(patch, _Patch) or patch.patched is not present:  # functools.wraps copies attributes
        patch = _Patch(owner, name)
    if warns:
        _unseen_by_warnings(patch.patched)
    added = (lambda original: _unseen_by_warnings(wrapper(original))) if warns else wrapper
    patch.set([*patch.wrappers, added])
    return lambda: patch.set([other for other in patch.wrappers if other is not added])


def _unseen_by_warnings(function: Callable) -> Callable:
    """A warning points at the caller of a function, found by counting frames, so a wrapper must not be counted.

    The `warnings` module of every supported Python passes over the frames of the import system, which it knows by
    their file's name.
    """
    function.__code__ = function.__code__.replace(co_filename=f"{__file__}/importlib/_bootstrap")
    if "torch._dynamo" in sys.modules:  # it takes other code for the script's, and would compile it by itself
        torch._dynamo.eval_frame.skip_code(function.__code__)
    return function


def before(look: Callable) -> Callable[..., Generator]:
    """Watches each call of a function by calling `look` with the first argument before it."""

    def watch(first, *args, **kwargs):
        look(first)
        yield

    return watch


def after(look: Callable) -> Callable[..., Generator]:
    """Watches each call of a function by calling `look` with the first argument after it."""

    def watch(first, *args, **kwargs):
        yield
        look(first)

    return watch


# Tensors and other objects


def local(tensor: Tensor | None) -> Tensor | None:
    """This rank's shard of a DTensor; any other tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)


def version(tensor: Tensor) -> int:
    """A number that rises with every write. FSDP writes to a DTensor's shard, and everyone else to the DTensor."""
    shard = local(tensor)
    return tensor._version if shard is tensor else tensor._version + shard._version


def tensors_in(argument: Any) -> list[Tensor]:
    """A tensor, or the tensors in a collection; none in what is no collection, which is an error of the script's."""
    if isinstance(argument, Tensor):
        return [argument]
    return [each for each in argument if isinstance(each, Tensor)] if isinstance(argument, Iterable) else []


def is_zero(grad: Tensor | None) -> bool:
    return grad is None or not any_nonzero(grad)


def any_nonzero(grad: Tensor) -> bool:
    if type(grad) is not Tensor:
        grad = local(grad)
    if grad.is_meta:
        return True  # there are no numbers
    if grad.is_sparse:
        grad = grad._values()
    if type(grad) is Tensor and grad.is_cpu:  # faster than any(): it makes no tensor, and stops at the first difference
        return not torch.equal(grad, _zeros(grad.shape, grad.dtype))
    if grad.numel() > _SMALL and grad.dim() > 1 and grad[0].any():  # the first row is usually enough
        return True
    return bool(grad.any())


@lru_cache(maxsize=1_000)
def _zeros(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return torch.zeros((), dtype=dtype, device="cpu").expand(shape)  # one number in memory, whatever the shape


def subclasses(cls: type) -> Iterable[type]:
    return dict.fromkeys([cls, *(found for child in cls.__subclasses__() for found in subclasses(child))])


def living(*classes: type) -> list:
    """All living objects of these classes, which are written in Python: such an object refers to its class.

    This goes once through the heap, without a look at each object. It takes longer with every class.
    """
    kinds = {id(kind): kind for cls in classes for kind in subclasses(cls)}
    return [thing for thing in gc.get_referrers(*kinds.values()) if id(type(thing)) in kinds]  # others are not touched
