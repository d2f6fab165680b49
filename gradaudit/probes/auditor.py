"""Writes the history of a training script from what an observer tells.

Nothing is computed here for every gradient, so that a large model costs little more than a small one.
"""

import gc
from collections import Counter, OrderedDict
from collections.abc import Generator
from functools import lru_cache
from itertools import count
from multiprocessing.process import BaseProcess
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gradaudit.callsite import Place, caller_location, is_users, where
from gradaudit.history import PROBED_GRAPHS, AuditedCall, AuditedLedger, AuditedUpdate, History
from gradaudit.observe.gradients import Gradients, is_zero, local
from gradaudit.observe.ledger import Zeroing, last
from gradaudit.observe.observer import Listener, Observer, after, before
from gradaudit.observe.samples import REAL
from gradaudit.observe.uncompiled import backward_is_compiled
from gradaudit.probes.by_hand import UpdatesByHand
from gradaudit.probes.epochs import Epochs
from gradaudit.probes.frameworks import declared
from gradaudit.probes.graphs import Graphs
from gradaudit.probes.losses import number
from gradaudit.probes.made import MadeLosses
from gradaudit.probes.ranks import Ranks
from gradaudit.probes.scaling import Scaling
from gradaudit.probes.schedules import Schedules

_TRIM_EVERY = 1_000  # backward calls, or updates of one optimizer
_LOOKED_AT = 3  # parameters that are read at the end
_SAMPLED_UPDATES = 3  # of an optimizer, at most, before which some numbers are compared
_numbers = count()
_places = lru_cache(maxsize=1_000)(frozenset)  # many calls reach the same


class Auditor(Listener):
    """Listens to an observer, and to all that the modules beside this one watch."""

    who = "The auditor"
    ledger_type = AuditedLedger

    def __init__(self) -> None:
        self.history = History()
        self.key = f"gradaudit {next(_numbers)}"  # audits may be nested
        self.received_by = 1  # how many ledgers got gradients from the last backward call
        self.epochs = Epochs()

    def attach(self, observer: Observer) -> None:
        self.observer = observer
        self.by_hand = UpdatesByHand(observer, self.history)
        self.graphs = Graphs(self.key, observer, self.by_hand.find)
        self.scaling, self.schedules, self.ranks = Scaling(observer, self.history), Schedules(observer), Ranks(observer)
        self.made = MadeLosses(self.key, observer)
        observer.undo.callback(observer.guard(self._finish))
        self.made_at: WeakKeyDictionary[Optimizer, Place] = WeakKeyDictionary()
        observer.patch(Optimizer, "__init__", before(self._note_optimizer))
        observer.patch(torch.autograd, "grad", self._around_grad)
        observer.patch(BaseProcess, "start", after(self._note_process))
        observer.patch(_BaseDataLoaderIter, "__next__", after(self.epochs.drawn))

    def _note_optimizer(self, optimizer: Optimizer) -> None:
        self.made_at[optimizer] = where()

    def _around_grad(self, *_, **__) -> Generator:
        self.history.grads += 1
        yield

    def _note_process(self, _: object) -> None:
        self.history.processes += 1

    def _finish(self) -> None:
        self.history.calls = self.history.calls.trimmed()
        self.history.cut_short, self.history.by_framework = self.epochs.cut_short, declared()
        self.history.losses = self.made.counts()

    def overlapped(self) -> None:
        self.history.overlapping = True

    def gave_up(self, failure: str) -> None:
        self.history.failure = failure

    # Backward

    def backward_begins(self, number_: int, roots: list[Tensor], given: bool) -> AuditedCall:
        place, line, path = caller_location()
        call = AuditedCall(number_, place, line, path, self.scaling.factor_of_this_call())
        if given:
            call.carries_on = any(root.numel() > 1 for root in roots)
        alone = len(roots) == 1 and roots[0].numel() == 1
        if alone:
            call.value = number(roots[0])
        call.epoch = self.epochs.of_this_batch()
        if backward_is_compiled():
            return call
        self.graphs.look(call, roots, alone and not given, not self.received_by)
        self.received_by = 0
        return call

    def received(self, ledger: AuditedLedger, call: AuditedCall) -> None:
        self.received_by += 1
        if ledger.name and ledger not in call.ledgers:
            call.ledgers += (ledger,)
        gradients = ledger.gradients
        if gradients.shards:
            call.synced, call.sharded = not gradients.waits, True
            call.ranks = max(shard.ranks for shard in gradients.shards.values())
        if self.ranks.wrapped:
            self.ranks.received(ledger, call)
        if len(gradients.touched) < len(gradients.parameters):
            call.reach[ledger] = _places(tuple(gradients.touched))
        ledger.samples = []
        early = ledger.made < _SAMPLED_UPDATES and call.number <= PROBED_GRAPHS
        if early and not ledger.calls_closure and not ledger.by_hand:
            ledger.take_samples()
        if ledger.open.factor != 1:  # it was changed in the middle of a window
            ledger.open.factor = None
        weights = gradients.weight_versions()
        ledger.scaled, ledger.weights = call.scaled, weights
        if call.scaled != 1:
            ledger.scaler = self.scaling.scaler
        if ledger.by_hand:
            ledger.received_call(call)

    def backward_ends(self, call: AuditedCall) -> None:
        self.history.calls.append(call)
        if call.number % _TRIM_EVERY == 0:
            self.history.calls = self.history.calls.trimmed()
            for ledger in self.observer.active:
                ledger.trim()

    # Zeroing, changes, steps

    def wrote(self, ledger: AuditedLedger) -> bool:
        return self.by_hand.wrote(ledger)

    def zeroed(self, ledger: AuditedLedger, zeroing: Zeroing) -> None:
        ledger.notice_a_move()
        if zeroing.calls:
            zeroing.where = where()
            zeroing.were_zeros = ledger.gradients.came_as_zeros  # the calls themselves had brought nothing but zeros
            if ledger.moved or ledger.gradients.weight_versions() != ledger.weights:  # not only a step has read them
                for call in zeroing.calls:
                    call.read = True
        ledger.scaled, ledger.open.came_as_zeros = 1.0, not ledger.gradients.touched

    def changed(self, ledger: AuditedLedger, assigned: bool) -> None:
        ledger.scaled = 1.0  # it may have been taken out
        update, gradients = ledger.open, ledger.gradients
        overwritten = not all(is_zero(gradients.parameters[place].grad) for place in gradients.touched)
        update.assigned |= assigned
        update.replaced |= gradients.put
        update.overwritten |= overwritten
        update.rewritten |= not assigned
        self._note_factor(ledger, update)

    @staticmethod
    def _note_factor(ledger: AuditedLedger, update: AuditedUpdate) -> None:
        """As where a script divides what it has added up: before and after it, some numbers were read."""
        ratio = ledger.ratio()
        update.factor = None if None in (ratio, update.factor) else update.factor * ratio
        ledger.sample_again()

    def stepped(self, ledger: AuditedLedger, update: AuditedUpdate) -> None:
        if ledger.by_hand and ledger.made == 1:  # it has a name from now on
            for call in update.fresh:
                call.ledgers += (ledger,)
        elif not ledger.by_hand and (update.assigned or update.replaced):
            self.by_hand.step_givers(ledger)
        if ledger.made == 1:
            self.history.ledgers.append(ledger)
            ledger.made_at = "" if ledger.by_hand else self.made_at.get(ledger.optimizer(), "")
        self._compare_samples(ledger, update)
        update.where = update.fresh[-1].where if ledger.by_hand and update.fresh else where()
        update.place, update.at = self.history.updates_made, self.observer.calls
        self.history.updates_made += 1
        gradients = ledger.gradients
        update.assigned |= not (update.held or gradients.empty or update.skipped)
        update.assigned |= ledger.made == 1 and gradients.from_before
        if update.assigned or update.replaced:  # perhaps by what the script has read
            for zeroing in ledger.lost:
                for call in zeroing.calls if zeroing.after == update.number - 1 else ():
                    call.read = True
        update.inside = bool(self.observer.running)
        self.schedules.note_rate(ledger)
        if ledger.made >= 4 and not ledger.made & (ledger.made - 1):  # now and then, while the model lives
            self._look_for_idle(ledger)
        update.dtype = next((p.grad.dtype for p in gradients.parameters if p.grad is not None), None)
        if ledger.made % _TRIM_EVERY == 0:
            ledger.trim()

    def _look_for_idle(self, ledger: AuditedLedger) -> None:
        """Parameters that backward calls no longer reach: does a module hold them, does a step move them on?"""
        gradients, optimizer = ledger.gradients, ledger.optimizer()
        idle = [k for k, p in enumerate(gradients.parameters) if p.requires_grad and gradients.is_idle(k)]
        if idle and any(other.unowned for other in self.observer.by_hand):
            held = (gradients.parameters[k] for k in idle)
            ledger.gone = sum(isinstance(p, nn.Parameter) and not _is_in_a_module(p) for p in held)
        if optimizer is not None:
            ledger.idle = {k: gradients.last[k] for k in idle if _is_moved_by_zeros(gradients, k, optimizer)}

    def _compare_samples(self, ledger: AuditedLedger, update: AuditedUpdate) -> None:
        early = ledger.made <= _SAMPLED_UPDATES
        if ledger.samples and not (update.assigned or update.rewritten):
            ledger.by_data = update.rewritten = update.overwritten = ledger.rewritten()
            if ledger.by_data:
                self._note_factor(ledger, update)
        if early and any(map(_is_hooked, ledger.gradients.parameters)):
            ledger.hooked = True
        ledger.samples = []

    # The end of an optimizer

    def ended(self, ledger: AuditedLedger) -> None:
        if self.by_hand.ended(ledger) if ledger.by_hand else ledger.name or ledger.in_grad:
            self._conclude(ledger)
        ledger.trim()
        ledger.samples = []  # which would keep parameters alive

    def _conclude(self, ledger: AuditedLedger) -> None:
        self.observer.name(ledger)
        if not ledger.made:
            self.history.ledgers.append(ledger)
        ledger.schedule = self.schedules.found.get(ledger)
        gradients = ledger.gradients
        left = [call for call in last(ledger.unused, ledger.in_grad) if not call.used]
        unseen = not ledger.made and gradients.weight_versions() != ledger.weights  # else than by a step, or compiled
        if left and not unseen and not gradients.came_as_zeros:
            ledger.left_over = left
        if ledger.by_hand:
            return
        ledger.idle = {k: window for k, window in ledger.idle.items() if gradients.last[k] == window}
        ledger.is_nan = bool(gradients.parameters) and not all(map(_is_finite, gradients.parameters[:_LOOKED_AT]))
        ledger.moved_unseen = unseen and ledger.weights != -1
        trained = [
            (ever, p) for ever, p in zip(gradients.ever, gradients.parameters, strict=True) if p.requires_grad or ever
        ]
        ledger.never, ledger.trained = Counter(tuple(p.shape) for ever, p in trained if not ever), len(trained)


def _is_hooked(p: Tensor) -> bool:
    """Has the script put a hook of its own on a parameter, which may change the gradient?"""
    hooks = [*(p._backward_hooks or {}).values(), *(p._post_accumulate_grad_hooks or {}).values()]
    return any(is_users(hook.__code__.co_filename) for hook in hooks if hasattr(hook, "__code__"))


def _is_finite(p: Tensor) -> bool:
    p = local(p)
    readable = type(p) in (Tensor, nn.Parameter) and p.layout == torch.strided and not p.is_meta and p.dtype in REAL
    return not readable or bool(p.detach().isfinite().all())


def _is_in_a_module(p: Tensor) -> bool:
    """Whether a module holds the parameter by a name, and not only an optimizer, or a loop's variable."""
    holders = [each for each in gc.get_referrers(p) if type(each) in (dict, OrderedDict) and "__name__" not in each]
    return any(value is p for each in holders for value in each.values())


def _is_moved_by_zeros(gradients: Gradients, index: int, optimizer: Optimizer) -> bool:
    """Whether a parameter was used only in the first half of the windows, and zeros in `.grad` let a step move it."""
    p, was_used = gradients.parameters[index], gradients.last[index] > 0
    moves = optimizer.state.get(p) or any(group.get("weight_decay") for group in optimizer.param_groups)
    left = gradients.is_idle(index, gradients.filled // 2)
    return bool(was_used and left and moves) and p.grad is not None and is_zero(p.grad)
