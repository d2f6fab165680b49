"""Writes the history of a training script from what an observer tells.

Nothing is computed here for every gradient, so that a large model costs little more than a small one.
"""

import sys
import threading
from collections import Counter
from collections.abc import Generator
from itertools import count
from multiprocessing.process import BaseProcess
from subprocess import Popen
from types import CellType
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gradaudit.callsite import caller_location, is_users, where
from gradaudit.epochs import Epochs
from gradaudit.forwards import Forward, earlier_forward, leaves, mark_forward
from gradaudit.graphs import GraphWatch
from gradaudit.history import PROBED_GRAPHS, Backward, Clip, History, Kept, Window, Zeroing
from gradaudit.lanes import AuditedLane, ManualLane
from gradaudit.manual import FEW, MANY, agreement, given_to, goes_towards, proves_an_update
from gradaudit.named import NamedLosses
from gradaudit.names import names_of
from gradaudit.observe.observer import (
    Listener,
    Observer,
    after,
    before,
    is_zero,
    living,
    local,
    subclasses,
    tensors_in,
)
from gradaudit.observe.sharded import keepers, own_parameters
from gradaudit.observe.trace import Event
from gradaudit.observe.uncompiled import backward_is_compiled
from gradaudit.overwriting import watch_memory
from gradaudit.probe import number, watch_terms
from gradaudit.schedules import follows_the_script, is_of_the_script, own_numbers

_PROBED_GRADS = 100  # calls of autograd.grad before which the losses with names are looked at
_NAMES_EVERY = 64  # backward calls after the first ones: a loss may be used only from some epoch on
_MARKED_EVERY = 8  # after the first backward calls: the losses of one in so many are marked
_WALKS, _WALKS_A_LINE = 200, 3  # through the graphs of backward calls, to find leaves that no optimizer holds
_TRIM_EVERY = 1_000  # backward calls, or updates of one optimizer
_GLIMPSES = 3  # updates of an optimizer, at most, before which some numbers are compared
_WATCHED_SUMS = 5  # comparisons of where gradients lie: what overwrites them does so in every window
_THROWN_AWAY = 3  # models that lived for one backward call: their gradients are what they were made for
_OWN = 5  # frames between a method of the listener and the first that may be the script's: see `Observer` and `Guard`
_STAGES = "torch.distributed.pipelining.stage"
_numbers = count()


class _Thread(threading.local):
    """What a thread of the script is in the middle of."""

    def __init__(self) -> None:
        self.scaled = 1.0  # the scaler's factor in what the next backward is called on
        self.synced: bool | None = None  # does the next backward average over the ranks? None without DDP
        self.ranks = 1
        self.ddp: ref | None = None  # the module that decided it
        self.scaler: ref | None = None  # which one it was
        self.in_scheduler_step = False


class HistoryWriter(Listener):
    """Listens to an observer, and also to scalers, clipping, schedulers and ranks."""

    who = "The auditor"
    lane_type = AuditedLane
    kinds = (_BatchNorm,)
    hears_zeroing_at_once = False  # only the line on which gradients are lost is told

    def __init__(self) -> None:
        self.history = History()
        self.thread = _Thread()
        self.key = f"gradaudit {next(_numbers)}"  # audits may be nested
        self.graphs: list[tuple[ref, int]] = []  # of marked losses that something keeps; for how many calls each stands
        self.marked = 0  # the last backward call whose losses are
        self.forwards: list[ref] = []  # whose graphs are kept for further backward calls
        self.graph_watch = GraphWatch(self.key)
        self.calls = 0
        self.batchnorms = False  # are there any?
        self.batches: WeakKeyDictionary[_BatchNorm, int | None] = WeakKeyDictionary()  # each has seen
        self.scalers: WeakKeyDictionary[GradScaler, int] = WeakKeyDictionary()
        self.schedulers: set[type] = set()  # classes whose step is watched
        self.scheduled: WeakKeyDictionary[lr_scheduler.LRScheduler, int | None] = WeakKeyDictionary()  # their numbers
        self.pipelines = False  # are their stages watched?
        self.walked: Counter[str] = Counter()  # by line: graphs of backward calls
        self.walks = 0
        self.nearest_at: dict[str, int] = {}  # by line: the lane whose parameters a backward call reaches first
        self.ended_at: dict[str, ManualLane] = {}  # manual lanes that have ended, by the place of their first call
        self.unowned_at: dict[str, int] = {}  # parameters whose gradients nothing uses, by the same place
        self.thrown_away: Counter[str] = Counter()  # models that lived for one backward call, by the same place
        self.received_by = 1  # how many lanes got gradients from the last backward call
        self.sums = 0  # such comparisons so far
        self.began = 0  # the last backward call, in operations
        self.epochs = Epochs()

    def attach(self, observer: Observer) -> None:
        self.observer = observer
        self.named = NamedLosses(self.key, observer.guard)
        observer.undo.callback(self.named.end)
        observer.undo.callback(observer.guard(self._finish))
        observer.patch(torch.autograd, "grad", self._around_grad)
        observer.patch(BaseProcess, "start", after(self._note_process))
        observer.patch(Popen, "__init__", after(self._note_process))
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
                observer.patch(owner, name, self._around_clip, used_up=True)
        if torch.distributed.is_available():
            observer.patch(DistributedDataParallel, "forward", self._around_synced_forward)
            observer.patch(torch.distributed, "all_reduce", self._around_all_reduce)
        observer.patch(_BaseDataLoaderIter, "__next__", after(self.epochs.drawn))
        observer.patch(_BatchNorm, "__init__", after(self.found))
        observer.patch(nn.Module, "__setstate__", after(self.found))  # by copy.deepcopy, which calls no __init__
        observer.patch(lr_scheduler.LRScheduler, "__init__", before(lambda new: self._watch(type(new).__mro__)))
        self._watch(subclasses(lr_scheduler.LRScheduler))

    def _around_grad(self, *args, **kwargs) -> Generator:
        """A loss may be used by `autograd.grad` before the backward call, or without one."""
        self.history.grads += 1
        if self.history.grads <= _PROBED_GRADS and not torch.compiler.is_compiling():
            self.named.look(self.history.windows.total)
        yield

    def _note_process(self, _: object) -> None:
        self.history.processes += 1

    def _finish(self) -> None:
        self.history.trim()
        self.history.leave_out_zeros()
        self.history.join_short_lived()
        self.history.named_losses = list(self.named.found.values())
        self.history.updates_looked_at = len(self.named.updates)

    def found(self, thing: nn.Module) -> None:
        if isinstance(thing, _BatchNorm):
            self.batchnorms = True
            self.batches[thing] = None  # not read before its optimizer steps: loading a checkpoint counts, too

    def overlapped(self) -> None:
        self.history.overlapping = True

    def gave_up(self, failure: str) -> None:
        self.history.failure = failure

    # Backward

    def backward_begins(self, roots: list[Tensor], given: bool) -> Backward:
        state, (place, line, path) = self.thread, caller_location(_OWN)
        self.calls += 1
        if not self.pipelines and _STAGES in sys.modules:  # which a script may load at any time
            self.pipelines = True
            stage = sys.modules[_STAGES]._PipelineStageBase
            if hasattr(stage, "scale_grads"):
                self.observer.patch(stage, "scale_grads", self._around_scale_grads)
        call = Backward(self.calls, place, line, path, state.scaled)
        if state.synced is not None:
            call.synced, call.ranks, state.synced, state.ranks = state.synced, state.ranks, None, 1
            call.late_no_sync = call.synced and not getattr(state.ddp(), "require_backward_grad_sync", True)
        if given:
            call.carries_on = any(root.numel() > 1 for root in roots)
        alone = len(roots) == 1 and roots[0].numel() == 1
        if alone:
            call.value = number(roots[0])
        state.scaled = 1.0
        if self.epochs.last is not None:
            call.epoch = self.epochs.of_this_batch()
            call.drawn = self.epochs.data_sets()
        if self.graphs:
            self.graphs = [(graph, calls) for graph, calls in self.graphs if graph() is not None]
            older = self.graphs[:-1]  # the last may be kept only until the next
            call.alive = len(self.graphs) - len(older) + sum(calls for _, calls in older)
        if backward_is_compiled():
            return call
        key, calls = "", self.calls - self.marked
        if calls >= _MARKED_EVERY or self.calls <= PROBED_GRAPHS or self.forwards or any(self.observer.options):
            key, self.marked = self.key, self.calls
        for root in roots:
            marks = watch_terms(root, key, call, self.observer.probe, known=alone and not given)
            if marks:
                self.graphs.append((ref(marks[0]), calls))
        if self.forwards:
            self.forwards = [forward for forward in self.forwards if forward() is not None]
            earlier = earlier_forward(roots, f"{self.key} forward")
            call.goes_on = earlier.call if earlier else 0
        if (self.walked[line] < _WALKS_A_LINE or not self.received_by) and self.walks < _WALKS:
            self._walk(roots, line)
        call.nearest = self.nearest_at.get(line, 0)
        self.received_by = 0
        if self.sums < _WATCHED_SUMS:
            for lane in self.observer.active:
                if lane.held:
                    self.sums += 1
                    watch_memory(lane.parameters, call, self.observer.probe)
        if call.number <= PROBED_GRAPHS:
            early = _made_before(roots, self.began, call.scaled != 1)
            call.early = early and not (self.pipelines and _in_a_pipeline())  # which holds micro-batches, not losses
            self.began = torch.autograd._get_sequence_nr()
            retain_graph, create_graph = self.observer.options
            self.graph_watch.look(call, roots, keeps_graph=bool(retain_graph) and not create_graph)
        if call.number <= PROBED_GRAPHS or call.number % _NAMES_EVERY == 0:
            self.named.look(self.history.windows.total)
        return call

    def received(self, lane: AuditedLane, call: Backward) -> None:
        self.received_by += 1
        if lane.name and lane.name not in call.lanes:
            call.lanes += (lane.name,)
        if lane.shards:
            call.synced, call.sharded = not lane.waits, True
            call.ranks = max(shard.ranks for shard in lane.shards.values())
        if len(lane.touched) < len(lane.parameters):
            places = tuple(lane.touched)
            if len(lane.reaches) > _TRIM_EVERY:  # layers that are left out at random
                lane.reaches = {}
            call.reach[lane.key] = lane.reaches.setdefault(places, frozenset(places))
        lane.fresh.append((call, lane.evaluation or 0))
        if lane.evaluation is None and not lane.manual and lane.updates < _GLIMPSES and call.number <= PROBED_GRAPHS:
            lane.glimpse()
        else:
            lane.glimpses = []
        if lane.came_as_zeros:
            call.zeros += (lane.key,)
        weights = lane.weight_versions()
        lane.unstepped |= lane.weights not in (-1, weights)
        lane.scaled, lane.weights = 1.0 if lane.by_hand else call.scaled, weights
        if call.scaled != 1:
            lane.scaler = self.thread.scaler
        if lane.evaluation is not None:  # an optimizer that calls its closure reads every gradient of it
            call.used = True
        if lane.manual:
            lane.calls, lane.where = lane.calls + 1, lane.where or call.where
            if lane.watched():
                lane.take_samples()
        if lane.name:
            self._event("backward", lane, lane.held)

    def graph_kept(self, roots: list[Tensor], call: Backward) -> None:
        forward = Forward(call.goes_on or call.number)
        mark_forward(roots, f"{self.key} forward", forward)
        self.forwards.append(ref(forward))

    def backward_ends(self, call: Backward) -> None:
        self.history.backwards.append(call)
        for lane in self.observer.manual:
            lane.beside |= len(call.lanes) > bool(lane.name) and bool(lane.fresh) and lane.fresh[-1][0] is call
        if call.number % _TRIM_EVERY == 0:
            self.history.trim()
            for lane in self.observer.active:
                lane.fresh.trim()

    # Zeroing, changes, steps

    def zeroed(self, lane: AuditedLane) -> None:
        lane.cleared = True
        lost = lane.lost() if lane.fresh else []
        came_as_zeros = not lane.touched
        if lane.glimpses:
            lane.notice_a_move()
        if lost and (lane.strays or lane.weight_versions() != lane.weights):  # not only a step has read the gradients
            for call in lost:
                call.used = True
        elif lost and lane.name:
            name = self.observer.name(lane)
            zeroing = Zeroing(name, where(), lost, lane.updates, came_as_zeros, lane.came_as_zeros)
            lane.zeroings.append(zeroing)
            self.history.zeroings.append(zeroing)
        if lane.held and lane.name:
            self._event("zero", lane, 0)
        lane.scaled, lane.open = 1.0, Window(came_as_zeros=came_as_zeros)
        if lane.fresh:
            lane.fresh = Kept()

    def zeroed_in_part(self, lane: AuditedLane) -> None:
        pass  # the next step tells

    def changed(self, lane: AuditedLane, assigned: bool) -> None:
        lane.scaled = 1.0  # it may have been taken out
        window = lane.open
        window.kept |= lane.held > 0 and not lane.unused
        window.assigned |= assigned
        window.replaced |= lane.put
        window.overwritten |= not all(is_zero(lane.parameters[place].grad) for place in lane.touched)
        window.rewritten |= not assigned

    def stepped(self, lane: AuditedLane, skipped: bool) -> None:
        history, window = self.history, lane.open
        if lane.manual and not lane.stepped:  # it has a name from now on
            lane.stepped = True
            for held, (call, _) in enumerate(lane.fresh, 1):
                call.lanes += (lane.name,)
                self._event("backward", lane, held)
        elif not lane.manual and (window.assigned or window.replaced):
            self._step_givers(lane)
        if lane.glimpses and not (window.assigned or window.rewritten or window.clips or window.unscaled_after):
            lane.through_data = window.rewritten = window.overwritten = lane.rewritten()
        elif lane.through_data and lane.updates >= _GLIMPSES:  # as it did in every update that was looked at
            window.rewritten = window.overwritten = True
        if not lane.unused and lane.held:
            window.tried_again = lane.tries_again = lane.tries_again or lane.back_where_it_was()
        elif lane.updates < _GLIMPSES and any(map(_is_hooked, lane.parameters)):
            history.hooked.add(lane.name)
        lane.retry, lane.glimpses = lane.glimpses or lane.retry if lane.unused else lane.retry, []
        lane.updates += 1
        place = lane.fresh[-1][0].where if lane.manual and lane.fresh else where(_OWN)
        window.lane, window.key, window.where, window.skipped = lane.name, lane.key, place, skipped
        window.number, window.place = lane.updates, history.windows.total
        window.stale = lane.held - lane.unused
        if not (lane.held or lane.empty or skipped):
            window.reused = lane.used_before(self.calls)
            window.assigned |= not window.reused
        if lane.uncleared:
            window.uncleared = self._still_uncleared(lane)
        if skipped:
            window.unwritten_momentum = _allocates_momentum(lane.optimizer())
        if lane.zeroings:  # gradients may be read before they are zeroed, and put back
            for zeroing in lane.zeroings:
                zeroing.overwritten = window.overwritten
                for call in zeroing.lost if window.assigned or window.replaced else ():
                    call.used = True
            lane.zeroings = []
        for call, evaluation in lane.fresh:
            call.used, call.users, call.used_at = True, (*call.users, lane.name), call.used_at or self.calls
            if 0 < evaluation < lane.fresh[-1][1]:  # of an earlier call of the closure
                window.stale += 1
            else:
                window.fresh.append(call)
        for p in lane.parameters:
            if p.grad is not None:
                window.dtype = p.grad.dtype
                break
        window.no_gradients = window.dtype is None
        window.event = self._event("change" if skipped else "step", lane, lane.held)
        if self.batchnorms:
            window.batchnorm = self._batchnorm_moves(lane)
        history.windows.append(window)
        history.updates[lane.name] += 1
        lane.last, lane.open, lane.fresh = window, Window(), Kept()
        if lane.updates % _TRIM_EVERY == 0:
            history.trim()

    def _still_uncleared(self, lane: AuditedLane) -> int:
        """How many parameters have kept gradients of an earlier update; at the first time, also their names."""
        places = [place for place in lane.uncleared if place < len(lane.parameters)]
        ids = [id(lane.parameters[place]) for place in places if lane.parameters[place].grad is not None]
        if ids and lane.name not in self.history.uncleared:
            names = names_of(ids[:3])
            self.history.uncleared[lane.name] = (len(lane.parameters), [names[key] for key in ids[:3] if key in names])
        return len(ids)

    # Whose parameters a backward call reaches

    def _walk(self, roots: list[Tensor], line: str) -> None:
        self.walked[line] += 1
        self.walks += 1
        reached = leaves(roots)
        nearest = id(reached[0]) if reached else None
        self.nearest_at[line] = next((lane.key for lane in self.observer.lanes.values() if nearest in lane.ids), 0)
        self._find_unowned(reached)

    def _find_unowned(self, reached: list[Tensor]) -> None:
        owned = set().union(*(lane.ids for lane in self.observer.active))
        if any(lane.shards for lane in self.observer.active):
            owned |= own_parameters(living(*keepers()))
        found = {id(leaf): leaf for leaf in reached if id(leaf) not in owned}
        if found:
            memory = {_memory(p) for lane in self.observer.lanes.values() for p in lane.parameters} - {0}
            new = [leaf for leaf in found.values() if _memory(leaf) not in memory]  # else a view of what one holds
            midway = self.calls > 1 and not all(is_zero(leaf.grad) for leaf in new)
            if new and not midway:  # a window whose first backward calls were missed is not begun
                self.observer.add_manual_lane(ManualLane(new, self.observer.note_death))

    def wrote(self, lane: ManualLane) -> bool:
        moves = lane.moves() if lane.watched() and lane.name not in self.history.given else {}
        lane.kept = []
        if not moves:
            return False
        if not lane.proven:
            for place in self._following(lane, moves):  # a target network, or a moving average
                del moves[place]
            if not moves:
                return False
            agreed, counted = agreement((moved, lane.samples[k]) for k, moved in moves.items())
            lane.agreed, lane.counted = lane.agreed + agreed, lane.counted + counted
            lane.proven = proves_an_update(lane.agreed, lane.counted)
        if lane.proven and all(lane.telling):
            lane.compare_few(moves)
        if not lane.stepped:
            if (rest := lane.without(moves)) is not None:
                self.observer.add_manual_lane(rest)
            earlier = self.ended_at.get(lane.where)
            if earlier is not None:  # a perturbation for each batch, or a copy of the model: one lane for all
                lane.name, lane.updates, lane.proven = earlier.name, earlier.updates, True
        return True

    def _following(self, lane: ManualLane, moves: dict[int, Tensor]) -> list[int]:
        """Which of the parameters that moved have come nearer to another one."""
        parameters, others = lane.parameters, [p for other in self.observer.active for p in other.parameters]
        following = [k for k, moved in moves.items() if goes_towards(parameters[k], lane.samples[k], moved, others)]
        return following if any(len(moves[k]) >= MANY for k in following) else []

    def _step_givers(self, taker: AuditedLane) -> None:
        """The gradients that were put into this optimizer may be those of a copy of its model."""
        for lane in self.observer.manual:
            samples = [s for s in lane.samples if s is not None and len(s.places) >= FEW]
            if lane.unused and samples and all(given_to(s, taker.parameters) for s in samples):
                lane.proven = True
                self.observer.step(lane)
                self.history.given[lane.name] = taker.name

    def _end_manual(self, lane: ManualLane) -> bool:
        """Is it known that its gradients were used?"""
        if lane.dead or lane.updates:
            self.walked.clear()  # another model may come to the same lines
        if lane.proven:
            self.history.manual.add(lane.name)
            if lane.loose:
                self.history.loose.add(lane.name)
            self.ended_at[lane.where] = lane
            return True
        if lane.name:
            self.history.forget(lane.name)
        unowned = lane.dead + sum(map(all, zip(lane.named, lane.ever, strict=True)))
        others = [other for other in self.observer.active if not other.manual and other.updates]
        to_read = lane.cleared and not lane.beside and all(any(other.ever) for other in others)  # by the script itself
        if unowned and not to_read:
            self.unowned_at[lane.where] = max(unowned, self.unowned_at.get(lane.where, 0))
            self.thrown_away[lane.where] += lane.calls == 1 and not any(lane.named)
            self.history.unowned_shapes |= lane.shapes
            found = {at: count for at, count in self.unowned_at.items() if self.thrown_away[at] < _THROWN_AWAY}
            self.history.unowned = (sum(found.values()), next(iter(found))) if found else (0, "")
        return False

    def _hand_over(self, lane: AuditedLane) -> None:
        """A script may create a new optimizer for each update, over the same parameters."""
        if lane.name and lane.follows:
            self.history.follows[lane.name] = lane.follows
        if not lane.manual and lane.optimizer() is None:
            for other in self.observer.lanes.values():
                if other.kind == lane.kind and other.ids == lane.ids and not (other.updates or other.follows):
                    other.follows = lane.name or lane.follows
                    break

    def ended(self, lane: AuditedLane) -> None:
        self._hand_over(lane)
        if not lane.name and not lane.fresh and not lane.manual:
            return
        if lane.manual and not self._end_manual(lane):
            return
        name = self.observer.name(lane)
        if lane.own_step:
            self.history.own_steps.add(name)
        if lane.own_step or lane.collects:
            self.history.collecting.add(name)
        lane.fresh.trim()
        left = lane.lost()
        unseen = not lane.updates and lane.weight_versions() != lane.weights  # something else than a step, or compiled
        lane.notice_a_move()
        if left and not unseen and not lane.moved and not lane.came_as_zeros:
            self.history.leftover[name] = left
        if lane.manual:
            return
        if not lane.updates and (lane.moved or lane.unstepped or (unseen and lane.weights != -1)):
            self.history.unstepped.append(name)
        if lane.moved and not lane.updates:  # an optimizer that updates in hooks, and whose step is never called
            self.history.manual.add(name)
            return
        trained = [(ever, p) for ever, p in zip(lane.ever, lane.parameters, strict=True) if p.requires_grad or ever]
        never = Counter(tuple(p.shape) for ever, p in trained if not ever)
        self.history.never[name], self.history.never_shapes[name] = (never.total(), len(trained)), never

    def _event(self, kind: str, lane: AuditedLane, held: int) -> Event:
        event = tuple.__new__(Event, (kind, lane.name or self.observer.name(lane), None, held))  # as Event(), but fast
        self.history.trace.events.append(event)
        return event

    # Scaler, clipping, scheduler, ranks

    def _around_synced_forward(self, module, *args, **kwargs) -> Generator:
        self.thread.synced = module.require_backward_grad_sync  # what counts is the flag at the forward
        self.thread.ranks, self.thread.ddp = module.process_group.size(), ref(module)
        if module.gradient_as_bucket_view:
            self.observer.look()
            yield
            self.observer.overlook()  # DDP has moved gradients into other buckets

    def _around_all_reduce(self, tensor=None, *args, **kwargs) -> Generator:
        """A script may average gradients itself. The call writes to them and raises no version."""
        for lane in self.observer.active:
            if lane.unused and any(p.grad is tensor for p in lane.parameters):
                lane.open.rewritten = True
        yield

    def _around_scale_grads(self, stage, factor) -> Generator:
        """A stage of a pipeline divides the sum of its micro-batches' gradients, as if each loss had been divided."""
        self.observer.look()
        yield
        self.observer.overlook()
        ids = set(map(id, stage.submod.parameters()))
        lanes = [lane for lane in self.observer.active if lane.ids & ids]
        for call in {call for lane in lanes for call, _ in lane.fresh}:
            for term in call.terms:
                term.value = term.value / factor
        for lane in lanes:
            lane.glimpses = []

    def _after_scale(self, scaler: GradScaler) -> None:
        if scaler.is_enabled():
            self.thread.scaled, self.thread.scaler = scaler.get_scale(), ref(scaler)

    def _around_unscale(self, scaler, optimizer=None) -> Generator:
        self.observer.look()
        yield
        lane = self.observer.lane_of(optimizer)
        if lane is not None and scaler.is_enabled():
            lane.compare()  # what it wrote is no change by the script
            lane.open.unscaled_after += (lane.unused,)
            lane.scaled = 1.0

    def _around_scaler_step(self, scaler, optimizer=None, *args, **kwargs) -> Generator:
        updates = self.history.windows.total
        yield
        lane = self.observer.lane_of(optimizer)
        if lane is not None and scaler.is_enabled():
            if self.history.windows.total == updates:
                self.observer.step(lane, skipped=True)
            if scaler not in self.scalers:
                self.scalers[scaler] = next(_numbers) + 1
                self.history.scaler_paths[self.scalers[scaler]] = caller_location()[2]
            lane.last.scaler = self.scalers[scaler]

    def _before_scaler_update(self, scaler: GradScaler) -> None:
        self.observer.look()
        for lane in self.observer.active:
            other = lane.scaler is not None and lane.scaler() is not scaler
            if scaler.is_enabled() and lane.unused and lane.scaled != 1 and not other:
                lane.open.updated_after += ((lane.unused, where()),)

    def _around_clip(self, parameters=(), *args, **kwargs) -> Generator:
        self.observer.look()
        for lane in self.observer.manual:
            if lane.unused:
                lane.kept = lane.parameters  # the update comes after clipping, and may be the last one
        ids = set(map(id, tensors_in(parameters)))
        norm = args[1].detach() if len(args) > 1 and isinstance(args[1], Tensor) else None
        limit = float(args[0]) if args and isinstance(args[0], int | float) else 0.0
        meant = [lane for lane in self.observer.active if not lane.ids.isdisjoint(ids) and not lane.inside_its_step]
        filled = [lane for lane in meant if lane.unused and lane.steps]  # the others are only clipped along with these
        for lane in filled or meant:
            if lane.glimpses and lane.rewritten():
                lane.by_hand, lane.scaled = True, 1.0
            late = lane.held > 0 and not lane.unused
            window = lane.last if late and lane.last else lane.open
            window.clips += (Clip(where(), lane.unused, norm, lane.scaled, late, limit),)
        yield
        for lane in self.observer.active:
            lane.compare()

    def _watch(self, schedulers) -> None:
        """A scheduler's class may be the script's own and younger than the audit."""
        for cls in schedulers:
            if "step" in vars(cls) and cls not in self.schedulers:
                self.schedulers.add(cls)
                self.observer.patch(cls, "step", self._around_scheduler_step, warns=True)

    def _around_scheduler_step(self, scheduler, *args, **kwargs) -> Generator:
        lane = self.observer.lanes.get(id(getattr(scheduler, "optimizer", None)))
        state, inside = self.thread, self.thread.in_scheduler_step
        counts = getattr(scheduler, "_step_count", 1)  # not the one that it makes when it is created
        if lane is not None and not inside:
            self.observer.look()
        state.in_scheduler_step = True  # a scheduler may step others, or the one that it inherits from
        rates = _rates(scheduler) if lane is not None and not inside else None
        try:
            yield
        finally:
            state.in_scheduler_step = inside
            if rates is not None:
                number, last = getattr(scheduler, "last_epoch", None), self.scheduled.get(scheduler)
                self.scheduled[scheduler] = number
                if not counts or (number == last and rates == _rates(scheduler)):  # the same number again
                    pass
                elif lane.unused:
                    lane.open.scheduler_steps += ((lane.unused, where()),)
                elif lane.last is not None:
                    lane.last.scheduler_steps_after += (where(),)
                history, now = self.history, _rates(scheduler)
                moved, schedules = history.rate_moved, history.schedules
                if counts:
                    if lane.key not in schedules:
                        history.own_numbers[lane.key] = own_numbers(scheduler)
                        if follows_the_script(scheduler):
                            history.own_schedules.add(lane.key)
                        elif is_of_the_script(scheduler):
                            history.own_classes.add(lane.key)
                    length, steps = schedules.get(lane.key) or (schedule_length(scheduler), 0)
                    schedules[lane.key] = length, steps + 1
                    history.at_zero[lane.key] = 0 if any(now) else history.at_zero[lane.key] + 1
                moved[lane.key] = moved.get(lane.key, False) or rates != now

    # BatchNorm

    def _batchnorm_moves(self, lane: AuditedLane) -> int:
        """How often the running statistics of a layer of this lane have moved since its last step."""
        moves = 0
        for module, seen in list(self.batches.items()):
            batches = module.num_batches_tracked
            if batches is not None and module.weight is not None and id(module.weight) in lane.ids:
                self.batches[module] = batches._version  # read without waiting for a GPU
                moves = max(moves, batches._version - (batches._version if seen is None else seen))
        return moves


def _made_before(roots: list[Tensor], began: int, scaled: bool) -> bool:
    nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
    if scaled:  # the product with the scale is younger
        nodes = [child for node in nodes for child, _ in node.next_functions[:1] if child is not None]
    return all(node._sequence_nr() < began for node in nodes)


def _rates(scheduler: lr_scheduler.LRScheduler) -> list:
    """The learning rates. One that is a tensor counts as changed: reading it could wait for a GPU."""
    rates = [group["lr"] for group in scheduler.optimizer.param_groups]
    return [object() if isinstance(rate, Tensor) else rate for rate in rates]


def schedule_length(scheduler: lr_scheduler.LRScheduler) -> int:
    """After how many steps a schedule has come to its end; 0 if it says nothing of that."""
    if isinstance(scheduler, lr_scheduler.SequentialLR):
        *_, last = scheduler._schedulers
        return scheduler._milestones[-1] + schedule_length(last)
    function = next(iter(getattr(scheduler, "lr_lambdas", ())), None)
    made_with = getattr(function, "keywords", {})  # of a functools.partial
    cells = getattr(function, "__closure__", None) or ()
    lengths = [getattr(scheduler, name, 0) for name in ("total_steps", "T_max", "total_iters")]
    lengths += [max(getattr(scheduler, "milestones", None) or [0]), made_with.get("num_training_steps", 0)]
    lengths += [cell.cell_contents for cell in cells if type(cell) is CellType and cell != CellType()]
    return max((length for length in lengths if isinstance(length, int)), default=0)


def _in_a_pipeline() -> bool:
    frame = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != _STAGES:
        frame = frame.f_back
    return frame is not None


def _is_hooked(p: Tensor) -> bool:
    """Has the script put a hook of its own on a parameter, which may change the gradient?"""
    hooks = [*(p._backward_hooks or {}).values(), *(p._post_accumulate_grad_hooks or {}).values()]
    return any(is_users(hook.__code__.co_filename) for hook in hooks if hasattr(hook, "__code__"))


def _memory(tensor: Tensor) -> int:
    tensor = local(tensor)
    ordinary = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    return tensor.untyped_storage().data_ptr() if ordinary else id(tensor)


def _allocates_momentum(optimizer: Optimizer | None) -> bool:
    """Whether the step that begins is the first one of a fused SGD with momentum, for any parameter."""
    return isinstance(optimizer, SGD) and any(
        group["fused"]
        and group["momentum"]
        and any(p.grad is not None and "momentum_buffer" not in optimizer.state.get(p, {}) for p in group["params"])
        for group in optimizer.param_groups
    )
