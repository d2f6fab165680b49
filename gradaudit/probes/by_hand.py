"""Updates that no torch optimizer makes: by hand, by another library's optimizer, or through a copy of the model.

PyTorch has no hook for them. Leaves that backward calls reach and that no optimizer holds get a ledger of their own,
and a few of their numbers are compared: see `samples`.
"""

from collections import Counter
from collections.abc import Iterable
from weakref import ref

from torch import Tensor, nn

from gradaudit.history import AuditedCall, AuditedLedger, History
from gradaudit.observe.gradients import Gradients, is_zero, living
from gradaudit.observe.observer import Observer
from gradaudit.observe.samples import Sample, sample
from gradaudit.observe.sharded import keepers, own_parameters

BY_HAND = "manual update"  # stands where the name of an optimizer would stand
_TELLING = 8  # parameters that are compared, at most


class _Leaf:
    def __init__(self, p: Tensor) -> None:
        self.ref = ref(p)
        self.named = isinstance(p, nn.Parameter)  # is it a parameter of a module, not just a tensor?
        self.sample: Sample | None = None  # taken at the last backward call


class _LooseGradients(Gradients):
    """Of leaves that are not kept alive."""

    lists = "leaves", "seen", "versions", "ever", "last"

    def __init__(self) -> None:
        self.leaves: list[_Leaf] = []
        super().__init__()

    @property
    def parameters(self) -> list[Tensor]:
        alive = [leaf.ref() for leaf in self.leaves]
        if any(p is None for p in alive):
            self.keep([p is not None for p in alive])
            alive = [p for p in alive if p is not None]
            self.ids = set(map(id, alive))
        return alive

    @parameters.setter
    def parameters(self, _: list) -> None:
        pass  # only `add` adds any

    def add(self, p: Tensor) -> None:
        super().add(p)
        self.leaves.append(_Leaf(p))

    def let_go(self) -> None:
        self.leaves = []


class LedgerByHand(AuditedLedger):
    """Of leaves that no optimizer holds.

    Attributes:
        kept: The leaves, from a backward call until the next event, so that an update before they die is seen.
        steps: Has it been seen that the gradients are used?
        calls: Backward calls, of which the first was at `where`.
        beside: Did any of them bring gradients to an optimizer's parameters as well?
        given: Are they given to an optimizer of another model?
        unowned: How many parameters of modules have received gradients.
    """

    by_hand, gradients_type, steps, beside, given = True, _LooseGradients, False, False, False
    calls, unowned, where = 0, 0, ""

    def __init__(self, found: Iterable[Tensor]) -> None:
        super().__init__(None)
        self.kind = BY_HAND
        self.kept: list[Tensor] = []
        for p in found:
            self.gradients.add(p)
        self.shapes = Counter(tuple(p.shape) for p in self.gradients.parameters)

    def received_call(self, call: AuditedCall) -> None:
        self.calls, self.where = self.calls + 1, self.where or call.where
        had = sum(leaf.named and ever for leaf, ever in zip(self.gradients.leaves, self.gradients.ever, strict=True))
        self.unowned = max(self.unowned, had)
        self.kept = self.gradients.parameters
        for p, leaf in list(zip(self.kept, self.gradients.leaves, strict=True))[:: 1 + len(self.kept) // _TELLING]:
            leaf.sample = sample(p, leaf.sample)

    def has_moved(self) -> bool:
        """Whether something has written to the parameters since the last backward call."""
        pairs = zip(self.gradients.parameters, self.gradients.leaves, strict=True)
        return any(leaf.sample is not None and leaf.sample.has_moved(p) for p, leaf in pairs)


class UpdatesByHand:
    """Finds the leaves, and tells when something has used their gradients."""

    def __init__(self, observer: Observer, history: History) -> None:
        self.observer, self.history = observer, history
        self.unowned_at: dict[str, int] = {}  # parameters whose gradients nothing uses, by the place of the first call

    def find(self, reached: list[Tensor]) -> None:
        """Gives the leaves that a backward call reaches, and that no ledger knows, a ledger of their own."""
        active = self.observer.active
        owned = set().union(*(ledger.gradients.ids for ledger in active))
        reached = [leaf for leaf in reached if not hasattr(leaf, "_fsdp_flattened")]  # one of FSDP1
        if any(ledger.gradients.shards for ledger in active):
            owned |= own_parameters(living(*keepers()))
        new = list({id(leaf): leaf for leaf in reached if id(leaf) not in owned}.values())
        midway = self.observer.calls > 1 and not all(is_zero(leaf.grad) for leaf in new)
        if new and not midway:  # a window whose first backward calls were missed is not begun
            self.observer.add_by_hand(LedgerByHand(new))

    def wrote(self, ledger: LedgerByHand) -> bool:
        """Has something used its gradients, and written to its parameters, since the last backward call?"""
        moved = not ledger.given and ledger.has_moved()
        ledger.kept = []
        ledger.steps |= moved
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
        others = [other for other in self.history.ledgers if not other.by_hand and other.made]
        # By the script itself, which zeroes them, too.
        is_read = ledger.cleared and not ledger.beside and all(any(other.gradients.ever) for other in others)
        if ledger.unowned and ledger.calls > 1 and not is_read:  # of one call, gradients may be all that was wanted
            self.unowned_at[ledger.where] = max(ledger.unowned, self.unowned_at.get(ledger.where, 0))
            self.history.unowned_shapes |= ledger.shapes
            self.history.unowned = sum(self.unowned_at.values()), next(iter(self.unowned_at))
        return False
