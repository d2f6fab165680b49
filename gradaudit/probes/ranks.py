"""What several ranks share: when DDP averages, what a script averages itself, and what a pipeline divides."""

import sys
import threading
from collections.abc import Generator

import torch
from torch.nn.parallel import DistributedDataParallel

from gradaudit.history import AuditedCall, AuditedLedger
from gradaudit.observe.gradients import living
from gradaudit.observe.observer import Observer, after

_STAGES = "torch.distributed.pipelining.stage"


class _Thread(threading.local):
    """What a thread of the script is in the middle of."""

    synced: bool | None = None  # does the next backward average over the ranks? None without DDP
    ranks = 1


class Ranks:
    """Watches DDP, `all_reduce` and the stages of pipelines."""

    def __init__(self, observer: Observer) -> None:
        self.observer, self.thread = observer, _Thread()
        self.pipelines = False  # are their stages watched?
        self.wrapped: dict[int, int] = {}  # ranks that exchange a parameter's gradient, by the parameter's id
        if torch.distributed.is_available():
            observer.patch(DistributedDataParallel, "__init__", after(self._note_wrapper))
            for wrapper in living(DistributedDataParallel):
                self._note_wrapper(wrapper)
            observer.patch(DistributedDataParallel, "forward", self._around_forward)
            observer.patch(torch.distributed, "all_reduce", self._around_all_reduce)

    def note(self, call: AuditedCall) -> None:
        """A backward call begins: will it be averaged over the ranks?"""
        if not self.pipelines and _STAGES in sys.modules:  # which a script may load at any time
            self.pipelines = True
            stage = sys.modules[_STAGES]._PipelineStageBase
            if hasattr(stage, "scale_grads"):
                self.observer.patch(stage, "scale_grads", self._around_scale_grads)
        state = self.thread
        if state.synced is not None:
            call.synced, call.ranks, state.synced, state.ranks = state.synced, state.ranks, None, 1

    def _note_wrapper(self, wrapper: DistributedDataParallel, *_, **__) -> None:
        ranks = wrapper.process_group.size()
        self.wrapped |= {id(p): ranks for p in wrapper.parameters() if p.requires_grad}

    def received(self, ledger: AuditedLedger, call: AuditedCall) -> None:
        """A call went beside the wrapper of the parameters that it brought gradients to, or reaches others as well."""
        known = self.wrapped.keys() & ledger.gradients.ids
        ranks = max((self.wrapped[each] for each in known), default=1)
        if ranks > 1:
            if call.synced is None:
                call.synced, call.ranks, call.beside = False, ranks, True
            others = [p for p in ledger.gradients.parameters if id(p) not in known and p.grad is not None]
            ledger.unwrapped = max(ledger.unwrapped, len(others))

    def _around_forward(self, module, *args, **kwargs) -> Generator:
        self.thread.synced = module.require_backward_grad_sync  # by default the flag at the forward counts
        self.thread.ranks = module.process_group.size()
        if module.gradient_as_bucket_view:
            self.observer.look()
            yield
            self.observer.overlook()  # DDP has moved gradients into other buckets

    def _around_all_reduce(self, tensor=None, *args, **kwargs) -> Generator:
        """A script may average gradients itself. The call writes to them and raises no version."""
        for ledger in self.observer.own():
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
