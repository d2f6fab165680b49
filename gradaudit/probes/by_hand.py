"""Updates that no torch optimizer makes: by hand, by another library's optimizer, or through a copy of the model.

PyTorch has no hook for them. Leaves that backward calls reach and that no optimizer holds get a ledger of their own,
and a few of their numbers are compared: see `samples`.
"""

from collections import Counter
from collections.abc import Iterable
from weakref import ref

import torch
from torch import Tensor, nn

from gradaudit.history import AuditedCall, AuditedLedger, History
from gradaudit.observe.gradients import Gradients, living
from gradaudit.observe.observer import Observer
from gradaudit.observe.samples import Sample, sample
from gradaudit.observe.sharded import keepers, own_parameters

BY_HAND = "manual update"  # stands where the name of an optimizer would stand
_TELLING = 8  # parameters that are compared, at most
_ENOUGH, _NEARLY_ALL = 8, 0.95  # numbers whose signs prove an update, if nearly all of them agree


class _LooseGradients(Gradients):
    """Of leaves that are not kept alive."""

    lists = "leaves", "samples", "seen", "versions", "ever", "last"

    def __init__(self) -> None:
        super().__init__()
        self.samples: list[Sample | None] = []  # taken at the last backward call

    @property
    def parameters(self) -> list[Tensor]:
        alive = [leaf() for leaf in self.leaves]
        if any(p is None for p in alive):
            self.keep([p is not None for p in alive])
            alive = [p for p in alive if p is not None]
            self.ids = set(map(id, alive))
        return alive

    @parameters.setter
    def parameters(self, none: list[Tensor]) -> None:
        self.leaves: list[ref[Tensor]] = []  # only `add` adds any

    def add(self, p: Tensor) -> None:
        super().add(p)
        self.leaves.append(ref(p))
        self.samples.append(None)


class LedgerByHand(AuditedLedger):
    """Of leaves that no optimizer holds.

    Attributes:
        kept: The leaves, from a backward call until the next event, so that an update before they die is seen.
        steps: Has it been seen that the gradients are used?
        calls: Backward calls, of which the first was at `where`.
        given: Are they given to an optimizer of another model?
        unowned: How many parameters of modules have received gradients.
    """

    by_hand, gradients_type, steps, given = True, _LooseGradients, False, False
    calls, unowned, where = 0, 0, ""

    def __init__(self, found: Iterable[Tensor]) -> None:
        super().__init__(None)
        self.kind = BY_HAND
        self.kept: list[Tensor] = []
        self.agreed = self.counted = 0  # signs, in the first updates
        for p in found:
            self.gradients.add(p)
        self.shapes = Counter(tuple(p.shape) for p in self.gradients.parameters)

    def received_call(self, call: AuditedCall) -> None:
        self.calls, self.where = self.calls + 1, self.where or call.where
        gradients, self.kept = self.gradients, self.gradients.parameters
        had = sum(isinstance(p, nn.Parameter) and ever for p, ever in zip(self.kept, gradients.ever, strict=True))
        self.unowned = max(self.unowned, had)
        for index in range(0, len(self.kept), 1 + len(self.kept) // _TELLING):
            gradients.samples[index] = sample(self.kept[index], gradients.samples[index])

    def has_moved(self) -> bool:
        """Whether something has written to the parameters since the last backward call, perhaps by an update."""
        pairs = zip(self.gradients.parameters, self.gradients.samples, strict=True)
        moved = [then.signs(p) for p, then in pairs if then is not None and then.has_moved(p)]
        if moved and not self.steps:
            signs = torch.cat(moved)
            self.agreed, self.counted = self.agreed + int(signs.sum()), self.counted + int(signs.count_nonzero())
            self.steps = self.counted >= _ENOUGH and abs(self.agreed) >= _NEARLY_ALL * self.counted
        return bool(moved)


class UpdatesByHand:
    """Finds the leaves, and tells when something has used their gradients."""

    def __init__(self, observer: Observer, history: History) -> None:
        self.observer, self.history = observer, history

    def find(self, reached: list[Tensor]) -> None:
        """Gives the leaves that a backward call reaches, and that no ledger knows, a ledger of their own."""
        active = self.observer.active
        owned = set().union(*(ledger.gradients.ids for ledger in active))
        if any(ledger.gradients.shards for ledger in active):
            owned |= own_parameters(living(*keepers()))
        new = [leaf for leaf in reached if id(leaf) not in owned and not hasattr(leaf, "_fsdp_flattened")]
        if new:
            self.observer.add_by_hand(LedgerByHand(new))

    def wrote(self, ledger: LedgerByHand) -> bool:
        """Has something used its gradients, and written to its parameters, since the last backward call?"""
        moved = not ledger.given and ledger.has_moved()
        ledger.kept = []
        return moved

    def step_givers(self, taker: AuditedLedger) -> None:
        """The gradients that were put into this optimizer may be those of a copy of its model."""
        shapes = Counter(tuple(p.shape) for p in taker.gradients.parameters)
        for ledger in self.observer.by_hand:
            if ledger.unused and ledger.shapes <= shapes:
                ledger.steps = ledger.given = True
                taker.taken = True
                self.observer.step(ledger)

    def ended(self, ledger: LedgerByHand) -> bool:
        """Is it known that its gradients were used?"""
        if ledger.steps:
            ledger.by_itself, ledger.loose = True, not ledger.unowned
            return True
        if ledger.name:
            self.history.forget(ledger)
        if ledger.unowned and ledger.calls > 1:  # of one call, gradients may be all that was wanted
            self.history.unowned_shapes |= ledger.shapes
            self.history.unowned = max(self.history.unowned, (ledger.unowned, ledger.where))
        return False
