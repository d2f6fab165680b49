"""Writes the history of a training script from what an observer tells.

Nothing is computed here for every gradient, so that a large model costs little more than a small one.
"""

import threading
from collections.abc import Callable
from itertools import count
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad
from torch.optim import SGD, Optimizer, lr_scheduler

from course_utils.audit.callsite import caller_location, where
from course_utils.audit.history import Backward, Clip, History, Kept, Window, Zeroing
from course_utils.audit.probe import separate_graphs, watch_terms
from course_utils.observe.observer import Lane, Listener, Observer, after, before, living, subclasses
from course_utils.observe.trace import Event

_PROBED_GRAPHS = 20  # backward calls whose graphs are compared in full
_SEARCHES = 5  # among all living objects
_TRIM_EVERY = 1_000  # backward calls, or updates of one optimizer
_numbers = count()


class _AuditedLane(Lane):
    """An optimizer and the window that is being filled."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.updates = 0
        self.fresh = Kept()  # backward calls since the last step, and in which call of a closure each came
        self.scaled = 1.0  # the scaler's factor that is in .grad
        self.weights = -1  # their version at the last backward; -1 before the first
        self.open = Window()
        self.last: Window | None = None

    def lost(self) -> list[Backward]:
        """The calls that no step has used, if nothing uses them from now on."""
        return [call for call, _ in self.fresh if not call.used]


class _Thread(threading.local):
    """What a thread of the script is in the middle of."""

    def __init__(self) -> None:
        self.scaled = 1.0  # the scaler's factor in what the next backward is called on
        self.synced: bool | None = None  # does the next backward average over the ranks? None without ranks
        self.in_scheduler_step = False


class HistoryWriter(Listener):
    """Listens to an observer, and also to scalers, clipping, schedulers and ranks."""

    lane_type = _AuditedLane
    kinds = (nn.Parameter,)

    def __init__(self) -> None:
        self.history = History()
        self.thread = _Thread()
        self.key = f"course_utils.audit {next(_numbers)}"  # audits may be nested
        self.graphs: list[ref] = []  # of the losses that backward was called on, for as long as something keeps them
        self.calls = 0
        self.searches = 0
        self.search_due = True
        self.batchnorms = False  # are there any?
        self.batches: WeakKeyDictionary[_BatchNorm, int] = WeakKeyDictionary()  # that each has seen, as last read
        self.scalers: WeakKeyDictionary[GradScaler, int] = WeakKeyDictionary()
        self.schedulers: set[type] = set()  # classes whose step is watched
        self.from_before: dict[int, tuple[int, int]] = {}  # gradients that are older than the audit

    def attach(self, observer: Observer) -> None:
        self.observer = observer
        observer.patch(GradScaler, "scale", after(self._after_scale))
        observer.patch(GradScaler, "unscale_", self._around_unscale)
        observer.patch(GradScaler, "step", self._around_scaler_step)
        observer.patch(GradScaler, "update", before(self._before_scaler_update))
        for owner, name in (
            (clip_grad, "_clip_grads_with_norm_"),
            (clip_grad, "clip_grad_value_"),
            (nn.utils, "clip_grad_value_"),
        ):
            if hasattr(owner, name):
                observer.patch(owner, name, self._around_clip)
        if torch.distributed.is_available():
            observer.patch(DistributedDataParallel, "forward", before(self._before_synced_forward))
        observer.patch(lr_scheduler.LRScheduler, "__init__", before(lambda new: self._watch(type(new).__mro__)))
        self._watch(subclasses(lr_scheduler.LRScheduler))

    def found(self, thing: nn.Parameter) -> None:
        if thing.grad is not None:
            self.from_before[id(thing)] = (id(thing.grad), thing.grad._version)

    def overlapped(self) -> None:
        self.history.overlapping = True

    # Backward

    def backward_begins(self, roots: list[Tensor], given: bool) -> Backward:
        state, (place, line) = self.thread, caller_location()
        self.calls += 1
        call = Backward(self.calls, place, line, scaled=state.scaled, synced=state.synced)
        state.scaled, state.synced = 1.0, None
        self.graphs = [graph for graph in self.graphs if graph() is not None]
        call.alive = len(self.graphs)  # graphs of earlier calls
        for root in roots:
            marks, again = watch_terms(root, self.key, call, known=len(roots) == 1 and not given)
            call.again |= again
            self.graphs += map(ref, marks[:1])
        if call.number <= _PROBED_GRAPHS:
            call.graphs = max((separate_graphs(root) for root in roots), default=1)
        return call

    def received(self, lane: _AuditedLane, call: Backward) -> None:
        if lane.name not in call.lanes:
            call.lanes += (lane.name,)
        self.search_due |= lane.weights < 0
        lane.fresh.append((call, lane.evaluation or 0))
        lane.scaled, lane.weights = call.scaled, lane.weight_versions()
        if lane.evaluation is not None:  # an optimizer that calls its closure reads every gradient of it
            call.used = True
        self._event("backward", lane, lane.held)

    def backward_ends(self, call: Backward) -> None:
        for probe in call.probes:
            probe.remove()
        call.probes = ()
        self.history.backwards.append(call)
        if self.search_due:
            self._search(call)
        if call.number % _TRIM_EVERY == 0:
            self.history.trim()
            for lane in self.observer.active:
                lane.fresh.trim()

    # Zeroing, changes, steps

    def zeroed(self, lane: _AuditedLane) -> None:
        lost = lane.lost() if lane.fresh else []
        came_as_zeros = not lane.touched
        if lost and lane.weight_versions() != lane.weights:  # something else than a step has read the gradients
            for call in lost:
                call.used = True
        elif lost:
            self.history.zeroings.append(Zeroing(self.observer.name(lane), where(), lost, came_as_zeros))
        if lane.held:
            self._event("zero", lane, 0)
        lane.fresh, lane.scaled, lane.open = Kept(), 1.0, Window(came_as_zeros=came_as_zeros)

    def changed(self, lane: _AuditedLane, assigned: bool) -> None:
        lane.open.assigned |= assigned
        lane.open.rewritten |= not assigned

    def stepped(self, lane: _AuditedLane, skipped: bool) -> None:
        history, window = self.history, lane.open
        lane.updates += 1
        window.lane, window.where, window.skipped = lane.name, caller_location()[0], skipped
        window.number, window.place = lane.updates, history.windows.total
        window.stale = lane.held - lane.unused
        window.unwritten_momentum = skipped and _allocates_momentum(lane.optimizer())
        for call, evaluation in lane.fresh:
            call.used = True
            if 0 < evaluation < lane.fresh[-1][1]:  # of an earlier call of the closure
                window.stale += 1
            else:
                window.fresh.append(call)
        for p in lane.parameters:
            if p.grad is not None:
                window.dtype = p.grad.dtype
                break
        window.event = self._event("change" if skipped else "step", lane, lane.held)
        if self.batchnorms:
            window.batchnorm = self._batchnorm_moves(lane)
        history.windows.append(window)
        history.updates[lane.name] += 1
        lane.last, lane.open, lane.fresh = window, Window(), Kept()
        if lane.updates % _TRIM_EVERY == 0:
            history.trim()

    def ended(self, lane: _AuditedLane) -> None:
        if not lane.name and not lane.fresh:
            return
        name = self.observer.name(lane)
        lane.fresh.trim()
        left = lane.lost()
        if left:
            self.history.leftover[name] = left
        trained = [ever for ever, p in zip(lane.ever, lane.parameters, strict=True) if p.requires_grad or ever]
        self.history.never[name] = (trained.count(False), len(trained))

    def _event(self, kind: str, lane: _AuditedLane, held: int) -> Event:
        event = Event(kind, lane.name or self.observer.name(lane), None, held)
        self.history.trace.events.append(event)
        return event

    # Scaler, clipping, scheduler, ranks

    def _before_synced_forward(self, module: DistributedDataParallel) -> None:
        if module.process_group.size() > 1:
            self.thread.synced = module.require_backward_grad_sync  # what counts is the flag at the forward

    def _after_scale(self, scaler: GradScaler) -> None:
        if scaler.is_enabled():
            self.thread.scaled = scaler.get_scale()

    def _around_unscale(self, original: Callable) -> Callable:
        def unscale_(scaler, optimizer):
            self.observer.look()
            original(scaler, optimizer)
            lane = self.observer.lane_of(optimizer)
            if lane is not None and scaler.is_enabled():
                lane.compare()  # what it wrote is no change by the script
                lane.open.unscaled_after += (lane.unused,)
                lane.scaled = 1.0

        return unscale_

    def _around_scaler_step(self, original: Callable) -> Callable:
        def step(scaler, optimizer, *args, **kwargs):
            updates = self.history.windows.total
            result = original(scaler, optimizer, *args, **kwargs)
            lane = self.observer.lane_of(optimizer)
            if lane is not None and scaler.is_enabled():
                if self.history.windows.total == updates:
                    self.observer.step(lane, skipped=True)
                lane.last.scaler = self.scalers.setdefault(scaler, next(_numbers) + 1)
            return result

        return step

    def _before_scaler_update(self, scaler: GradScaler) -> None:
        self.observer.look()
        for lane in self.observer.active:
            if scaler.is_enabled() and lane.unused and lane.scaled != 1:
                lane.open.updated_after += ((lane.unused, where()),)

    def _around_clip(self, original: Callable) -> Callable:
        def clip(parameters, *args, **kwargs):
            parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            self.observer.look()
            ids = set(map(id, parameters))
            norm = args[1].detach() if len(args) > 1 and isinstance(args[1], Tensor) else None
            for lane in self.observer.active:
                if not lane.ids.isdisjoint(ids):
                    late = lane.held > 0 and not lane.unused
                    window = lane.last if late and lane.last else lane.open
                    window.clips += (Clip(where(), lane.unused, norm, lane.scaled, late),)
            result = original(parameters, *args, **kwargs)
            for lane in self.observer.active:
                lane.compare()
            return result

        return clip

    def _watch(self, schedulers) -> None:
        """A scheduler's class may be the script's own and younger than the audit."""
        for cls in schedulers:
            if "step" in vars(cls) and cls not in self.schedulers:
                self.schedulers.add(cls)
                self.observer.patch(cls, "step", self._around_scheduler_step, warns=True)

    def _around_scheduler_step(self, original: Callable) -> Callable:
        def step(scheduler, *args, **kwargs):
            lane = self.observer.lanes.get(id(getattr(scheduler, "optimizer", None)))
            state, inside = self.thread, self.thread.in_scheduler_step
            if lane is not None and not inside and getattr(scheduler, "_step_count", 1):
                self.observer.look()
                if lane.unused:
                    lane.open.scheduler_steps += ((lane.unused, where()),)
                elif lane.last is not None:
                    lane.last.scheduler_steps_after += (where(),)
            state.in_scheduler_step = True  # a scheduler may step others, or the one that it inherits from
            try:
                return original(scheduler, *args, **kwargs)
            finally:
                state.in_scheduler_step = inside

        return step

    # What only a search among all living objects finds: at the first backward, and when an optimizer has its first.

    def _search(self, call: Backward) -> None:
        self.search_due = False
        self.searches += 1
        if self.searches > _SEARCHES:
            return
        owned = {key for lane in self.observer.active for key in lane.ids}
        unowned = 0
        for thing in living(_BatchNorm, nn.Parameter):
            if isinstance(thing, nn.Parameter):
                grad = thing.grad
                unowned += (
                    grad is not None
                    and id(thing) not in owned
                    and self.from_before.get(id(thing)) != (id(grad), grad._version)  # it is of this backward call
                )
            elif thing.num_batches_tracked is not None:
                self.batchnorms = True
                self.batches.setdefault(thing, thing.num_batches_tracked._version)
        if call.number == 1 and unowned:
            self.history.unowned = (unowned, call.where)

    def _batchnorm_moves(self, lane: _AuditedLane) -> int:
        """How often the running statistics of a layer of this lane have moved since its last step."""
        moves = 0
        for module, seen in list(self.batches.items()):
            if module.weight is not None and id(module.weight) in lane.ids:
                self.batches[module] = module.num_batches_tracked._version  # read without waiting for a GPU
                moves = max(moves, self.batches[module] - seen)
        return moves


def _allocates_momentum(optimizer: Optimizer | None) -> bool:
    """Whether the step that begins is the first one of a fused SGD with momentum, for any parameter."""
    return isinstance(optimizer, SGD) and any(
        group["fused"]
        and group["momentum"]
        and any(p.grad is not None and "momentum_buffer" not in optimizer.state.get(p, {}) for p in group["params"])
        for group in optimizer.param_groups
    )
