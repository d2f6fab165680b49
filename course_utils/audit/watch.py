"""Watches any training script while it runs and writes its history. Nothing of the script is changed.

A look at `.grad` is a look at which tensor it is and at its version, which rises with every write: nothing is computed,
and values are read only where gradients may have been zeroed, so that a large model costs little more than a small one.
"""

import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import lru_cache, wraps
from itertools import compress, count
from operator import attrgetter
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from course_utils.audit.callsite import caller_location, where
from course_utils.audit.history import Backward, Clip, History, Kept, Window, Zeroing
from course_utils.audit.probe import separate_graphs, watch_terms
from course_utils.observe.trace import Event

_PROBED_GRAPHS = 20  # backward calls whose graphs are compared in full
_SMALL = 10_000  # numbers that are quicker looked at than not
_LOOKS_AROUND = 5  # searches among all living objects
_TRIM_EVERY = 1_000  # backward calls, or updates of one optimizer
_numbers = count()
_version = attrgetter("_version")


class _Lane:
    """One optimizer: its parameters, what was last seen of their `.grad`, and the window that is being filled."""

    def __init__(self, optimizer: Optimizer, died: Callable[[ref], None] | None = None):
        self.optimizer = ref(optimizer, died)  # not kept alive: the script may make and drop many
        self.kind = type(optimizer).__name__
        self.name = ""  # given with the first thing that happens
        self.updates = 0
        self.parameters: list[Tensor] = []
        self.ids: set[int] = set()
        self.seen: list[tuple[int, int] | None] = []  # of each .grad, who it is and its version; it is not kept alive
        self.ever: list[bool] = []
        self.fresh = Kept()  # backward calls since the last step, and in which call of a closure each came
        self.stale = 0  # backward calls in .grad that a step has used
        self.empty = True
        self.replaced = False  # at the last look, by other tensors
        self.written = False  # had anything raised a version at the last look?
        self.scaled = 1.0  # the scaler's factor that is in .grad
        self.before = 0  # `weights()` at the last backward
        self.open = Window()
        self.last: Window | None = None
        self.stepping = 0  # a step that calls the step which it inherits makes one update
        self.evaluation: int | None = None  # how often a step has called its closure; None outside of such a step

    @property
    def calls(self) -> list[Backward]:
        return [call for call, _ in self.fresh]

    def add(self, optimizer: Optimizer) -> None:
        """Sees to the parameters that the optimizer has now."""
        for group in optimizer.param_groups:
            for p in group["params"]:
                if id(p) not in self.ids:
                    self.ids.add(id(p))
                    self.parameters.append(p)
                    self.seen.append(None if p.grad is None else (id(p.grad), p.grad._version))
                    self.ever.append(False)
                    self.empty &= p.grad is None

    def weights(self) -> int:
        """A number that rises with every write to a weight."""
        return sum(map(_version, self.parameters))

    def look(self, backward: bool = False, values: bool = False) -> bool:
        """Has anything been written to the gradients since the last look? Says in `empty` whether any is left.

        With `values` it does not rely on versions alone: old code zeroes through .data, which raises none.
        """
        seen = []
        for p in self.parameters:
            grad = p.grad
            seen.append(None if grad is None else (id(grad), grad._version))
        changed = self.written = seen != self.seen
        self.replaced = False
        if changed:
            for place, (now, before) in enumerate(zip(seen, self.seen, strict=True)):
                if now != before:
                    self.replaced |= now is None or before is None or now[0] != before[0]
                    self.ever[place] |= now is not None
            self.seen = seen
        if backward:
            self.empty &= not changed
        elif changed or (values and (self.fresh or self.stale)):
            was_empty, self.empty = self.empty, True
            for p in self.parameters:
                if p.grad is not None and _any(p.grad):
                    self.empty = False
                    break
            changed |= self.empty and not was_empty
        return changed


def _any(grad: Tensor) -> bool:
    if grad.is_sparse:
        grad = grad._values()
    if type(grad) is Tensor and grad.is_cpu:  # quicker than any(): it makes no tensor, and ends at the first difference
        return not torch.equal(grad, _zeros(grad.shape, grad.dtype))
    if grad.numel() > _SMALL and grad.dim() > 1 and grad[0].any():  # most often the first row tells
        return True
    return bool(grad.any())


@lru_cache(maxsize=1_000)
def _zeros(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return torch.zeros((), dtype=dtype, device="cpu").expand(shape)  # one number in memory, whatever the shape


class _Thread(threading.local):
    """What a thread of the script is in the middle of."""

    def __init__(self) -> None:
        self.scaled = 1.0  # the scaler's factor in what the next backward is called on
        self.synced: bool | None = None  # does the next backward average over the ranks? None without ranks
        self.in_scheduler_step = False  # a scheduler is being stepped


class Watcher:
    """Writes the history of the block between `attach()` and `detach()`."""

    def __init__(self, window: int | None = None) -> None:
        self.history = History()
        if window is not None:
            self.history.declared.append((0, window))
        self.active = False
        self.attached = ExitStack()
        self.lanes: dict[int, _Lane] = {}  # by the id of the optimizer
        self.living: list[_Lane] = []  # the same lanes; replaced, never changed, since threads go through it
        self.died = False  # an optimizer, since the last look
        self.names: Counter[str] = Counter()
        self.thread = _Thread()
        self.running: dict[int, Backward] = {}  # by thread
        self.key = f"course_utils.audit {next(_numbers)}"  # audits may be nested
        self.compared = self.looked_around = 0
        self.graphs: list[ref] = []  # of the losses that backward was called on, as long as something keeps them
        self.batchnorms = False  # are there any?
        self.moved: WeakKeyDictionary[_BatchNorm, int] = WeakKeyDictionary()
        self.scalers: WeakKeyDictionary[GradScaler, int] = WeakKeyDictionary()
        self.had: dict[int, tuple[int, int]] = {}  # gradients from before the audit

    # What is attached, and detached again in any case.

    def attach(self) -> None:
        self.active = True
        self.attached.callback(register_optimizer_step_pre_hook(self.before_step).remove)
        self.attached.callback(register_optimizer_step_post_hook(self.after_step).remove)
        self._patch(Optimizer, "add_param_group", self._after(self.know))
        self._patch(Optimizer, "zero_grad", self._after(self.after_zero_grad))
        self._patch(nn.Module, "zero_grad", self._after(lambda _: self.look()))
        self._patch(torch.autograd, "backward", self._around_backward)
        self._patch(GradScaler, "scale", self._after(self.after_scale))
        self._patch(GradScaler, "unscale_", self._around_unscale)
        self._patch(GradScaler, "step", self._around_scaler_step)
        self._patch(GradScaler, "update", self._before(self.before_update))
        for owner, name in (
            (clip_grad, "_clip_grads_with_norm_"),
            (clip_grad, "clip_grad_value_"),
            (nn.utils, "clip_grad_value_"),
        ):
            if hasattr(owner, name):
                self._patch(owner, name, self._around_clip)
        if torch.distributed.is_available():
            self._patch(DistributedDataParallel, "forward", self._before(self.before_synced_forward))
        self._patch(lr_scheduler.LRScheduler, "__init__", self._before(self.know_scheduler))
        for scheduler in _subclasses(lr_scheduler.LRScheduler):
            if "step" in vars(scheduler):
                self._patch(scheduler, "step", self._around_scheduler_step)
        for thing in _living(Optimizer, nn.Parameter):
            if isinstance(thing, Optimizer):
                self.know(thing)
            elif thing.grad is not None:
                self.had[id(thing)] = (id(thing.grad), thing.grad._version)

    def detach(self) -> None:
        """Ends the watch and the history."""
        try:
            self.look()
            for lane in self.lanes.values():
                self._end(lane)
            self.history.trim()
        finally:
            self.attached.close()
            self.active = False
            self.lanes.clear()
            self.living = []

    def _patch(self, owner: object, name: str, around: Callable) -> None:
        original = vars(owner)[name]
        watched = around(original)

        @wraps(original)
        def patched(*args, **kwargs):  # whoever has kept it has the original after the audit
            return (watched if self.active else original)(*args, **kwargs)

        def restore() -> None:
            if vars(owner).get(name) is patched:  # else the script has put something of its own there
                setattr(owner, name, original)

        patched.watcher = self
        self.attached.callback(restore)
        setattr(owner, name, patched)

    def _after(self, look):
        def around(original):
            def call(first, *args, **kwargs):
                result = original(first, *args, **kwargs)
                look(first)
                return result

            return call

        return around

    def _before(self, look):
        def around(original):
            def call(first, *args, **kwargs):
                look(first)
                return original(first, *args, **kwargs)

            return call

        return around

    # Who is watched.

    def know(self, optimizer: Optimizer) -> _Lane | None:
        """The optimizer's lane. Wrappers, as frameworks put around an optimizer, have none: what they wrap steps."""
        lane = self.lanes.get(id(optimizer))
        if lane is None or lane.optimizer() is not optimizer:
            if not hasattr(type(optimizer).step, "hooked") or not hasattr(optimizer, "param_groups"):
                return None
            if lane is not None:
                self._end(lane)
            lane = self.lanes[id(optimizer)] = _Lane(optimizer, self._note_death)
            self.living = list(self.lanes.values())
        lane.add(optimizer)
        return lane

    def _note_death(self, _) -> None:
        self.died = True

    def know_scheduler(self, scheduler: lr_scheduler.LRScheduler) -> None:
        """Its class may be the script's own and younger than the audit."""
        for cls in type(scheduler).__mro__:
            if "step" in vars(cls) and getattr(vars(cls)["step"], "watcher", None) is not self and cls is not object:
                self._patch(cls, "step", self._around_scheduler_step)

    def bury(self) -> None:
        """Ends the lanes whose optimizers have died."""
        self.died = False
        for key, lane in list(self.lanes.items()):
            if lane.optimizer() is None:
                self.lanes.pop(key, None)
                self._look_at(lane)
                self._end(lane)
        self.living = list(self.lanes.values())

    def _name(self, lane: _Lane) -> str:
        if not lane.name:
            self.names[lane.kind] += 1
            number = self.names[lane.kind]
            lane.name = f"{lane.kind} {number}" if number > 1 else lane.kind
        return lane.name

    def inside(self) -> Backward | None:
        """The backward call that this thread is in the middle of."""
        call = self.running.get(threading.get_ident())
        if call is None and isinstance(threading.current_thread(), threading._DummyThread):
            call = next(reversed(list(self.running.values())))  # a thread of autograd's own, as it has for each GPU
        return call

    # What is seen.

    def look(self, values: bool = False) -> None:
        """Outside of a backward: have gradients been zeroed, or have they come from elsewhere?"""
        if self.running:
            self.history.overlapping |= self.inside() is None
            return
        if self.died:
            self.bury()
        for lane in self.living:
            self._look_at(lane, values)

    def _look_at(self, lane: _Lane, values: bool = False) -> None:
        was_empty = lane.empty
        if not lane.look(values=values):
            return
        if lane.empty:
            self._zeroed(lane)
        elif was_empty or (lane.replaced and not lane.fresh):
            lane.open.assigned = True
            lane.stale = 0
        else:
            lane.open.rewritten = True

    def after_zero_grad(self, optimizer: Optimizer) -> None:
        self.look()
        if self.running and self.inside() is not None:
            lane = self.know(optimizer)
            if lane is not None and lane.look() and lane.empty:
                self._zeroed(lane)

    def _zeroed(self, lane: _Lane) -> None:
        lost = [call for call in lane.calls if not call.used] if lane.fresh else []
        if lost and lane.weights() != lane.before:  # they were written since: something else than a step has read them
            for call in lost:
                call.used = True
        elif lost:
            self.history.zeroings.append(Zeroing(self._name(lane), where(), lost, came_as_zeros=not lane.written))
        held = bool(lane.fresh or lane.stale)
        lane.fresh, lane.stale, lane.scaled = Kept(), 0, 1.0
        lane.open = Window(came_as_zeros=not lane.written)
        if held:
            self._event("zero", lane)

    def _around_backward(self, original):
        def backward(tensors, grad_tensors=None, *args, **kwargs):
            if self.running and self.inside() is not None:  # a checkpoint runs a backward inside the backward
                return original(tensors, grad_tensors, *args, **kwargs)
            self.look(values=True)
            roots = [tensors] if isinstance(tensors, Tensor) else [root for root in tensors if root is not None]
            given = grad_tensors is not None or kwargs.get("grad_variables") is not None
            call, ends = self._before_backward([root for root in roots if root.grad_fn is not None], given)
            me = threading.get_ident()
            self.history.overlapping |= bool(self.running)
            self.running[me] = call
            try:
                return original(tensors, grad_tensors, *args, **kwargs)
            finally:
                del self.running[me]
                for end in ends:
                    call.terms += end(call.scaled)
                self._after_backward(call)

        return backward

    def _before_backward(self, roots: list[Tensor], given: bool) -> tuple[Backward, list[Callable]]:
        for lane in self.living:
            optimizer = lane.optimizer()
            if optimizer is not None:
                lane.add(optimizer)
        state, (place, line) = self.thread, caller_location()
        call = Backward(self.history.backwards.total + 1, place, line, scaled=state.scaled, synced=state.synced)
        state.scaled, state.synced = 1.0, None
        self.graphs = [graph for graph in self.graphs if graph() is not None]
        call.alive = len(self.graphs)  # graphs of earlier calls
        ends = []
        for root in roots:
            marks, again, end = watch_terms(root, self.key, known=len(roots) == 1 and not given)
            call.again |= again
            self.graphs += [ref(mark) for mark in marks[:1]]
            ends.append(end)
        if self.compared < _PROBED_GRAPHS:
            self.compared += 1
            call.graphs = max((separate_graphs(root) for root in roots), default=1)
        return call, ends

    def _after_backward(self, call: Backward) -> None:
        self.history.backwards.append(call)
        first = call.number == 1
        for lane in self.living:
            had = any(lane.ever)
            self._received(lane, call)
            first |= not had and any(lane.ever)
        if first:
            self._look_around(call)
        if call.number % _TRIM_EVERY == 0:
            self.history.trim()
            for lane in self.living:
                lane.fresh.trim()

    def _received(self, lane: _Lane, call: Backward) -> None:
        """If the lane has got gradients from this backward call, it holds it from now on."""
        if not lane.look(backward=True):
            return
        name = lane.name or self._name(lane)
        if name not in call.lanes:
            call.lanes += (name,)
        lane.fresh.append((call, lane.evaluation))
        lane.scaled, lane.before = call.scaled, lane.weights()
        if lane.evaluation is None:
            lane.stepping = 0
        else:  # an optimizer that calls its closure reads every gradient of it
            call.used = True
        self._event("backward", lane)

    def before_step(self, optimizer: Optimizer, args, kwargs):
        lane = self.know(optimizer)
        if lane is None:
            return None
        running = self.inside() if self.running else None
        if running is not None:  # an optimizer that steps inside of backward
            self._received(lane, running)
        self.look(values=True)  # a step on zeros finds nothing, wherever they come from
        lane.stepping += 1
        if lane.stepping > 1:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            found_inf = getattr(optimizer, "found_inf", None)  # set by a scaler while a fused optimizer steps
            self._stepped(lane, skipped=found_inf is not None and bool(found_inf))
            return None
        lane.evaluation = 0

        def counted(*inner, **options):
            lane.evaluation += 1
            return closure(*inner, **options)

        if "closure" in kwargs:
            return args, {**kwargs, "closure": counted}
        return (args[0], counted, *args[2:]), kwargs

    def after_step(self, optimizer: Optimizer, args, kwargs) -> None:
        lane = self.lanes.get(id(optimizer))  # known before the step
        if lane is None:
            return
        lane.stepping = max(0, lane.stepping - 1)
        if lane.evaluation is not None and not lane.stepping:
            self.look()
            self._stepped(lane)
            lane.evaluation = None

    def _stepped(self, lane: _Lane, skipped: bool = False) -> None:
        window, name, (place, _) = lane.open, lane.name or self._name(lane), caller_location()
        lane.updates += 1
        window.lane, window.where, window.skipped = name, place, skipped
        window.number, window.place = lane.updates, self.history.windows.total
        window.stale = lane.stale
        for call, evaluation in lane.fresh:
            call.used = True
            if evaluation is not None and evaluation < lane.fresh[-1][1]:  # of an earlier call of the closure
                window.stale += 1
            else:
                window.fresh.append(call)
        for p in lane.parameters:
            if p.grad is not None:
                window.dtype = p.grad.dtype
                break
        self.history.windows.append(window)
        self.history.updates[name] += 1
        lane.stale, lane.fresh = len(window.fresh) + window.stale, Kept()
        window.event = self._event("change" if skipped else "step", lane)
        lane.last, lane.open = window, Window()
        if self.batchnorms:
            window.batchnorm = self._batchnorm(lane)
        if lane.updates % _TRIM_EVERY == 0:
            self.history.trim()

    def _event(self, kind: str, lane: _Lane) -> Event:
        event = Event(kind, lane.name or self._name(lane), float(len(lane.fresh) + lane.stale))
        self.history.trace.events.append(event)
        return event

    # Scaler, clipping, scheduler, ranks.

    def before_synced_forward(self, module: DistributedDataParallel) -> None:
        if module.process_group.size() > 1:
            self.thread.synced = module.require_backward_grad_sync  # what counts is the flag at the forward

    def after_scale(self, scaler: GradScaler) -> None:
        if scaler.is_enabled():
            self.thread.scaled = scaler.get_scale()

    def _around_unscale(self, original):
        def unscale_(scaler, optimizer):
            self.look()
            original(scaler, optimizer)
            lane = self.know(optimizer)
            if lane is not None and scaler.is_enabled():
                lane.look(backward=True)
                lane.open.unscaled_after += (len(lane.fresh),)
                lane.scaled = 1.0

        return unscale_

    def _around_scaler_step(self, original):
        def step(scaler, optimizer, *args, **kwargs):
            before = self.history.windows.total
            result = original(scaler, optimizer, *args, **kwargs)
            lane = self.know(optimizer)
            if lane is not None and scaler.is_enabled():
                if self.history.windows.total == before:
                    self._stepped(lane, skipped=True)
                lane.last.scaler = self.scalers.setdefault(scaler, next(_numbers) + 1)
            return result

        return step

    def before_update(self, scaler: GradScaler) -> None:
        self.look()
        for lane in self.living:
            if scaler.is_enabled() and lane.fresh and lane.scaled != 1:
                lane.open.updated_after += ((len(lane.fresh), where()),)

    def _around_clip(self, original):
        def clip(parameters, *args, **kwargs):
            parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            self.look()
            ids = set(map(id, parameters))
            norm = args[1].detach() if len(args) > 1 and isinstance(args[1], Tensor) else None
            for lane in self.living:
                if not lane.ids.isdisjoint(ids):
                    late = not lane.fresh and lane.stale > 0
                    window = lane.last if late and lane.last else lane.open
                    window.clips += (Clip(where(), len(lane.fresh), norm, lane.scaled, late),)
            result = original(parameters, *args, **kwargs)
            for lane in self.living:
                lane.look(backward=True)
            return result

        return clip

    def _around_scheduler_step(self, original):
        def step(scheduler, *args, **kwargs):
            lane = self.lanes.get(id(getattr(scheduler, "optimizer", None)))
            state, inside = self.thread, self.thread.in_scheduler_step
            if lane is not None and not inside and getattr(scheduler, "_step_count", 1):
                self.look()
                if lane.fresh:
                    lane.open.scheduler_steps += ((len(lane.fresh), where()),)
                elif lane.last is not None:
                    lane.last.scheduler_steps_after += (where(),)
            state.in_scheduler_step = True  # a scheduler may step others, or the one that it inherits from
            try:
                return original(scheduler, *args, **kwargs)
            finally:
                state.in_scheduler_step = inside

        return step

    # What only a search among all living objects finds: at the first backward, and when an optimizer has its first.

    def _look_around(self, call: Backward) -> None:
        self.looked_around += 1
        if self.looked_around > _LOOKS_AROUND:
            return
        owned = {key for lane in self.living for key in lane.ids}
        unowned = 0
        for thing in _living(_BatchNorm, nn.Parameter):
            if isinstance(thing, nn.Parameter):
                grad = thing.grad
                unowned += (
                    grad is not None
                    and id(thing) not in owned
                    and self.had.get(id(thing)) != (id(grad), grad._version)  # it is of this backward call
                )
            elif thing.num_batches_tracked is not None:
                self.batchnorms = True
                self.moved.setdefault(thing, thing.num_batches_tracked._version)
        if call.number == 1 and unowned:
            self.history.unowned = (unowned, call.where)

    def _batchnorm(self, lane: _Lane) -> int:
        """How often the running statistics of a layer of this lane have moved since its last step."""
        moves = 0
        for module, before in list(self.moved.items()):
            if module.weight is not None and id(module.weight) in lane.ids:
                self.moved[module] = module.num_batches_tracked._version  # read without waiting for a GPU
                moves = max(moves, self.moved[module] - before)
        return moves

    def _end(self, lane: _Lane) -> None:
        if not lane.name and not lane.fresh:
            return
        name = self._name(lane)
        lane.fresh.trim()
        left = [call for call in lane.calls if not call.used]
        if left:
            self.history.leftover[name] = left
        trained = [ever for ever, p in zip(lane.ever, lane.parameters, strict=True) if p.requires_grad or ever]
        self.history.never[name] = (trained.count(False), len(trained))


def _subclasses(cls: type) -> Iterable[type]:
    return dict.fromkeys([cls, *(found for child in cls.__subclasses__() for found in _subclasses(child))])


def _living(*classes: type) -> list:
    """All living objects of these classes. Others are asked for nothing but their type: some do strange things."""
    kinds = {id(kind) for cls in classes for kind in _subclasses(cls)}
    things = gc.get_objects()  # hundreds of thousands: hence no loop in Python
    return list(compress(things, map(kinds.__contains__, map(id, map(type, things)))))
