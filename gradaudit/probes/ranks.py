"""What several ranks share: when DDP averages."""

from collections.abc import Generator
from weakref import WeakKeyDictionary

import torch
from torch.nn.parallel import DistributedDataParallel

from gradaudit.history import AuditedCall, AuditedLedger
from gradaudit.observe.gradients import living
from gradaudit.observe.observer import Observer, after


class Ranks:
    """Watches DDP."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        # by wrapper: whether the next backward call through it averages over the ranks
        self.synced: WeakKeyDictionary[DistributedDataParallel, bool] = WeakKeyDictionary()
        self.wrapped: WeakKeyDictionary[DistributedDataParallel, set[int]] = WeakKeyDictionary()  # ids of parameters
        observer.patch(DistributedDataParallel, "__init__", after(self._note_wrapper))
        for wrapper in living(DistributedDataParallel):
            self._note_wrapper(wrapper)
        observer.patch(DistributedDataParallel, "forward", self._around_forward)

    def _note_wrapper(self, wrapper: DistributedDataParallel, *_, **__) -> None:
        self.wrapped[wrapper] = {id(p) for p in wrapper.parameters() if p.requires_grad}

    def received(self, ledger: AuditedLedger, call: AuditedCall) -> None:
        """A call has brought gradients to a ledger, through the wrapper of its parameters, which averages, or not."""
        parameters = ledger.gradients.parameters
        reached = {id(parameters[index]) for index in ledger.gradients.touched}
        through = [wrapper for wrapper, ids in self.wrapped.items() if not ids.isdisjoint(reached)]
        ranks = max((wrapper.process_group.size() for wrapper in through), default=1)
        flags = [self.synced.pop(wrapper) for wrapper in through if wrapper in self.synced]
        if flags:
            call.synced, call.ranks, call.beside = all(flags), ranks, False
        elif call.synced is None and ranks > 1:
            call.synced, call.ranks, call.beside = False, ranks, True
        if ranks > 1:
            known = set().union(*self.wrapped.values())
            ledger.unwrapped = max(ledger.unwrapped, sum(p.grad is not None and id(p) not in known for p in parameters))

    def _around_forward(self, module, *args, **kwargs) -> Generator:
        if torch.is_grad_enabled():  # by default the flag at the forward counts
            self.synced[module] = module.require_backward_grad_sync
        if module.gradient_as_bucket_view:
            self.observer.look()
            yield
            self.observer.overlook()  # DDP has moved gradients into other buckets
