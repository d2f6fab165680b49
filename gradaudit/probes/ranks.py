"""What several ranks share: when DDP averages, what a script averages itself, and what a pipeline divides."""

import sys
import threading
from collections.abc import Generator
from weakref import WeakKeyDictionary

import torch
from torch.nn.parallel import DistributedDataParallel

from gradaudit.history import AuditedCall, AuditedLedger
from gradaudit.observe.gradients import living
from gradaudit.observe.observer import Observer, after

_STAGES = "torch.distributed.pipelining.stage"


class _Thread(threading.local):
    """What a thread of the script is in the middle of."""

    def __init__(self) -> None:
        # by wrapper: whether the next backward call through it averages over the ranks
        self.synced: WeakKeyDictionary[DistributedDataParallel, bool] = WeakKeyDictionary()


class Ranks:
    """Watches DDP, `all_reduce` and the stages of pipelines."""

    def __init__(self, observer: Observer) -> None:
        self.observer, self.thread = observer, _Thread()
        self.pipelines = False  # are their stages watched?
        self.wrapped: WeakKeyDictionary[DistributedDataParallel, set[int]] = WeakKeyDictionary()  # ids of parameters
        if torch.distributed.is_available():
            observer.patch(DistributedDataParallel, "__init__", after(self._note_wrapper))
            for wrapper in living(DistributedDataParallel):
                self._note_wrapper(wrapper)
            observer.patch(DistributedDataParallel, "forward", self._around_forward)
            observer.patch(torch.distributed, "all_reduce", self._around_all_reduce)

    def note(self, call: AuditedCall) -> None:
        """A backward call begins. A script may load pipelines, whose stages divide gradients, at any time."""
        if not self.pipelines and _STAGES in sys.modules:
            self.pipelines = True
            stage = sys.modules[_STAGES]._PipelineStageBase
            if hasattr(stage, "scale_grads"):
                self.observer.patch(stage, "scale_grads", self._around_scale_grads)

    def _note_wrapper(self, wrapper: DistributedDataParallel, *_, **__) -> None:
        self.wrapped[wrapper] = {id(p) for p in wrapper.parameters() if p.requires_grad}

    def received(self, ledger: AuditedLedger, call: AuditedCall) -> None:
        """A call has brought gradients to a ledger, through the wrapper of its parameters, which averages, or not."""
        parameters = ledger.gradients.parameters
        reached = {id(parameters[index]) for index in ledger.gradients.touched}
        through = [wrapper for wrapper, ids in self.wrapped.items() if not ids.isdisjoint(reached)]
        ranks = max((wrapper.process_group.size() for wrapper in through), default=1)
        flags = [self.thread.synced.pop(wrapper) for wrapper in through if wrapper in self.thread.synced]
        if flags:
            call.synced, call.ranks, call.beside = all(flags), ranks, False
        elif call.synced is None and ranks > 1:
            call.synced, call.ranks, call.beside = False, ranks, True
        if ranks > 1:
            known = set().union(*self.wrapped.values())
            ledger.unwrapped = max(ledger.unwrapped, sum(p.grad is not None and id(p) not in known for p in parameters))

    def _around_forward(self, module, *args, **kwargs) -> Generator:
        if torch.is_grad_enabled():  # by default the flag at the forward counts
            self.thread.synced[module] = module.require_backward_grad_sync
        if module.gradient_as_bucket_view:
            self.observer.look()
            yield
            self.observer.overlook()  # DDP has moved gradients into other buckets

    def _around_all_reduce(self, tensor=None, *args, **kwargs) -> Generator:
        """A script may average gradients itself. The call writes to them and raises no version."""
        for ledger in self.observer.active:
            if ledger.unused and any(p.grad is tensor for p in ledger.gradients.parameters):
                ledger.open.rewritten = True
        yield

    def _around_scale_grads(self, stage, factor) -> Generator:
        """A stage of a pipeline divides the sum of its micro-batches' gradients, as if each loss had been divided."""
        self.observer.look()
        yield
        self.observer.overlook()
        ids = set(map(id, stage.submod.parameters()))
        ledgers = [ledger for ledger in self.observer.active if ledger.gradients.ids & ids]
        for call in {call for ledger in ledgers for call in ledger.in_grad[len(ledger.in_grad) - ledger.unused :]}:
            for term in call.terms:
                term.value = term.value / factor
        for ledger in ledgers:
            ledger.samples = []
