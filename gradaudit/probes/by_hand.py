"""Updates that no torch optimizer makes: by hand, by another library's optimizer, or through a copy of the model.

PyTorch has no hook for them. Leaves that backward calls reach and that no optimizer holds get a ledger of their own,
and a few of their numbers are compared: see `samples`.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from weakref import ref

import torch
from torch import Tensor, nn

from gradaudit.history import AuditedCall, AuditedLedger, History
from gradaudit.observe.gradients import Gradients, is_zero, living, local
from gradaudit.observe.observer import Observer
from gradaudit.observe.samples import Sample, sample
from gradaudit.observe.sharded import keepers, own_parameters

BY_HAND = "manual update"  # stands where the name of an optimizer would stand
_PATIENCE = 100  # backward calls without an update, or updates without a proof, until a ledger is given up
_TELLING = 8  # parameters that are compared
_ENOUGH, _NEARLY_ALL = 8, 0.95  # numbers whose signs prove an update, if nearly all of them agree
_FEW = 3  # numbers, at least, whose direction says anything if it is that of all parameters


class _Leaf:
    def __init__(self, p: Tensor, died: Callable[[ref], None]) -> None:
        self.ref = ref(p, died)
        self.named = isinstance(p, nn.Parameter)  # is it a parameter of a module, not just a tensor?
        self.telling = True  # is it one of those that are compared?
        self.sample: Sample | None = None  # taken at the last backward call


class _LooseGradients(Gradients):
    """Of leaves that are not kept alive."""

    lists = "leaves", "seen", "versions", "ever", "last"

    def __init__(self) -> None:
        self.leaves: list[_Leaf] = []
        self.died: Callable[[ref], None] = lambda _: None
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
        self.leaves.append(_Leaf(p, self.died))

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

    def __init__(self, found: Iterable[Tensor], died: Callable[[ref], None]) -> None:
        super().__init__(None)
        self.kind, self.name, self.gradients.died = BY_HAND, "", died
        self.kept: list[Tensor] = []
        self.agreed = self.counted = 0  # signs, in the first updates
        for p in found:
            self.gradients.add(p)
        self.shapes = Counter(tuple(p.shape) for p in self.gradients.parameters)

    def watched(self) -> bool:
        """Is it still worth a comparison of values?"""
        return self.steps or max(self.calls, self.made) <= _PATIENCE

    def received_call(self, call: AuditedCall) -> None:
        self.calls, self.where = self.calls + 1, self.where or call.where
        had = sum(leaf.named and ever for leaf, ever in zip(self.gradients.leaves, self.gradients.ever, strict=True))
        self.unowned = max(self.unowned, had)
        if self.watched():
            self.kept = self.gradients.parameters
            for p, leaf in zip(self.kept, self.gradients.leaves, strict=True):
                leaf.sample = sample(p, leaf.sample) if leaf.telling else None

    def samples_of(self) -> list[Sample | None]:
        return [leaf.sample for leaf in self.gradients.leaves]

    def moves(self) -> dict[int, Tensor]:
        """By place, how far the parameters have moved since the last backward call."""
        pairs = enumerate(zip(self.gradients.parameters, self.samples_of(), strict=True))
        moves = {place: then.move(p) for place, (p, then) in pairs if then is not None}
        return {place: moved for place, moved in moves.items() if moved is not None}

    def compare_signs(self, moves: dict[int, Tensor]) -> None:
        """Do so many numbers move along their gradient, or against it, that something has used it?"""
        samples = self.samples_of()
        signs = [torch.nan_to_num(moved.sign() * samples[k].gradient.sign()) for k, moved in moves.items()]
        self.agreed += sum(int(each.sum()) for each in signs)  # numbers that agree, less those that don't
        self.counted += sum(int(each.count_nonzero()) for each in signs)
        self.steps = self.counted >= _ENOUGH and abs(self.agreed) >= _NEARLY_ALL * self.counted

    def split_off(self, places: Iterable[int]) -> "LedgerByHand | None":
        """What has a gradient and isn't at these places gets a ledger of its own, with all that has happened to it."""
        gradients, parameters, samples = self.gradients, self.gradients.parameters, self.samples_of()
        rest = [k for k, s in enumerate(samples) if s is not None and s.gradient.any() and k not in places]
        if not rest or any(parameters[k].dtype in (torch.float16, torch.bfloat16) for k in rest):  # rounded to no move
            return None
        other = LedgerByHand([parameters[k] for k in rest], gradients.died)
        for name in gradients.lists:
            setattr(other.gradients, name, [getattr(gradients, name)[k] for k in rest])
        other.gradients.empty, other.gradients.from_before = gradients.empty, False
        other.in_grad, other.unused, other.unmade = type(self.in_grad)(self.in_grad), self.unused, self.unmade
        other.weights, other.calls, other.where = self.weights, self.calls, self.where
        gradients.discard(other.gradients.ids)
        return other


class UpdatesByHand:
    """Finds the leaves, and tells when something has used their gradients."""

    def __init__(self, observer: Observer, history: History) -> None:
        self.observer, self.history = observer, history
        self.unowned_at: dict[str, int] = {}  # parameters whose gradients nothing uses, by the place of the first call

    def find(self, reached: list[Tensor]) -> None:
        """Gives the leaves that a backward call reaches, and that no ledger knows, a ledger of their own."""
        active = self.observer.active
        owned = set().union(*(ledger.gradients.ids for ledger in active))
        if any(ledger.gradients.shards for ledger in active):
            owned |= own_parameters(living(*keepers()))
        found = {id(leaf): leaf for leaf in reached if id(leaf) not in owned}
        if found:
            held = (p for ledger in self.observer.ledgers.values() for p in ledger.gradients.parameters)
            memory = set(map(_memory, held)) - {0}
            new = [leaf for leaf in found.values() if _memory(leaf) not in memory]  # else a view of what one holds
            midway = self.observer.calls > 1 and not all(is_zero(leaf.grad) for leaf in new)
            if new and not midway:  # a window whose first backward calls were missed is not begun
                self.observer.add_by_hand(LedgerByHand(new, self.observer.note_death))

    def wrote(self, ledger: LedgerByHand) -> bool:
        """Has something used its gradients, and written to its parameters, since the last backward call?"""
        moves = ledger.moves() if ledger.watched() and not ledger.given else {}
        ledger.kept = []
        if moves and not ledger.steps:
            ledger.compare_signs(moves)
        if not moves:
            return False
        if ledger.steps and all(leaf.telling for leaf in ledger.gradients.leaves):
            places = sorted(moves)[:: 1 + len(moves) // _TELLING]  # these alone from now on, which saves time
            for place, leaf in enumerate(ledger.gradients.leaves):
                leaf.telling = place in places
        if not ledger.made and (rest := ledger.split_off(moves)) is not None:
            self.observer.add_by_hand(rest)
        return True

    def step_givers(self, taker: AuditedLedger) -> None:
        """The gradients that were put into this optimizer may be those of a copy of its model."""
        for ledger in self.observer.by_hand:
            samples = [each for each in ledger.samples_of() if each is not None and len(each.places) >= _FEW]
            if ledger.unused and samples and all(each.given_to(taker.gradients.parameters) for each in samples):
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
        others = [other for other in self.observer.active if not other.by_hand and other.made]
        # By the script itself, which zeroes them, too.
        is_read = ledger.cleared and not ledger.beside and all(any(other.gradients.ever) for other in others)
        if ledger.unowned and ledger.calls > 1 and not is_read:  # of one call, gradients may be all that was wanted
            self.unowned_at[ledger.where] = max(ledger.unowned, self.unowned_at.get(ledger.where, 0))
            self.history.unowned_shapes |= ledger.shapes
            self.history.unowned = sum(self.unowned_at.values()), next(iter(self.unowned_at))
        return False


def _memory(tensor: Tensor) -> int:
    tensor = local(tensor)
    ordinary = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    return tensor.untyped_storage().data_ptr() if ordinary else id(tensor)
