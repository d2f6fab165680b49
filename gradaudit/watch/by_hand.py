"""Updates that no torch optimizer makes: by hand, by another library's optimizer, or through a copy of the model.

PyTorch has no hook for them. Leaves that backward calls reach and that no optimizer holds get a record of their own, and
a few of their numbers are compared: see `samples`.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import compress
from weakref import ref

import torch
from torch import Tensor, nn

from gradaudit.history import AuditedCall, History
from gradaudit.observe.gradients import Gradients, is_zero, living, local
from gradaudit.observe.observer import Observer
from gradaudit.observe.sharded import keepers, own_parameters
from gradaudit.watch.forwards import leaves
from gradaudit.watch.records import WatchedRecord
from gradaudit.watch.samples import Sample, agreement, given_to, goes_towards, move, proves_an_update, sample

BY_HAND = "manual update"  # stands where the name of an optimizer would stand
_PATIENCE = 100  # backward calls without an update, or updates without a proof, until a record is given up
_TELLING = 8  # parameters that are compared
_FEW = 3  # numbers, at least, whose direction says anything if it is that of all parameters
_MANY = 6  # numbers, at least, whose direction agrees by chance with none of many others
_WALKS, _WALKS_A_LINE = 200, 3  # through the graphs of backward calls
_THROWN_AWAY = 3  # models that lived for one backward call: their gradients are what they were made for


class _Leaf:
    def __init__(self, p: Tensor, died: Callable[[ref], None]) -> None:
        self.ref = ref(p, died)
        self.named = isinstance(p, nn.Parameter)  # is it a parameter of a module, not just a tensor?
        self.telling = True  # is it one of those that are compared?
        self.sample: Sample | None = None  # taken at the last backward call


class _LooseGradients(Gradients):
    """Of leaves that are not kept alive. `dead`: parameters that had gradients and are gone."""

    def __init__(self) -> None:
        self.leaves: list[_Leaf] = []
        self.died: Callable[[ref], None] = lambda _: None
        self.dead = 0
        super().__init__()

    @property
    def parameters(self) -> list[Tensor]:
        alive = [leaf.ref() for leaf in self.leaves]
        if any(p is None for p in alive):
            gone = (
                leaf.named and ever for leaf, ever, p in zip(self.leaves, self.ever, alive, strict=True) if p is None
            )
            self.dead += sum(gone)
            self._keep([p is not None for p in alive])
            alive = [p for p in alive if p is not None]
            self.ids, self.uncleared = set(map(id, alive)), []
        return alive

    @parameters.setter
    def parameters(self, _: list) -> None:
        pass  # only `add` adds any

    def add(self, p: Tensor) -> None:
        super().add(p)
        self.leaves.append(_Leaf(p, self.died))

    def discard(self, ids: set[int]) -> None:
        self._keep([id(leaf.ref()) not in ids for leaf in self.leaves])
        self.ids -= ids

    def _keep(self, stays: list[bool]) -> None:
        for name in ("leaves", "seen", "versions", "ever"):
            setattr(self, name, list(compress(getattr(self, name), stays)))

    def let_go(self) -> None:
        self.leaves = []


class RecordByHand(WatchedRecord):
    """Of leaves that no optimizer holds. They are kept alive only from a backward call until the next event."""

    by_hand, gradients_type = True, _LooseGradients

    def __init__(self, found: Iterable[Tensor], died: Callable[[ref], None]) -> None:
        super().__init__(None)
        self.kind, self.name, self.gradients.died = BY_HAND, "", died
        self.kept: list[Tensor] = []  # so that an update before they die is seen
        self.shapes: Counter = Counter()  # of the parameters that it has held
        self.calls, self.where = 0, ""  # backward calls, and where the first of them was
        self.agreed = self.counted = 0  # signs of the first updates, as `agreement` counts them
        self.named_updates = False  # has it a name, and have its calls been told of it?
        self.steps = False  # has it been seen that the gradients are used?
        self.beside = False  # did any backward call bring gradients to an optimizer's parameters as well?
        for p in found:
            self.gradients.add(p)
            self.shapes[tuple(p.shape)] += 1

    def watched(self) -> bool:
        """Is it still worth a comparison of values?"""
        return self.steps or max(self.calls, self.made) <= _PATIENCE

    def received_call(self, call: AuditedCall) -> None:
        self.calls, self.where = self.calls + 1, self.where or call.where
        if self.watched():
            self.kept, compared = self.gradients.parameters, self.gradients.leaves
            if not any(leaf.telling for leaf in compared):
                for leaf in compared:
                    leaf.telling = True
            for p, leaf in zip(self.kept, compared, strict=True):
                leaf.sample = sample(p, leaf.sample) if leaf.telling else None

    def compare_few(self, moved: Iterable[int]) -> None:
        """From now on, which saves time: some of the parameters that an update has moved."""
        places = sorted(moved)
        few = set(places[:: 1 + len(places) // _TELLING])
        for place, leaf in enumerate(self.gradients.leaves):
            leaf.telling = place in few

    def moves(self) -> dict[int, Tensor]:
        """By place, how far the parameters have moved since the last backward call."""
        parameters = self.gradients.parameters
        moves = {
            k: move(p, leaf.sample) for k, (p, leaf) in enumerate(zip(parameters, self.gradients.leaves, strict=True))
        }
        return {place: moved for place, moved in moves.items() if moved is not None}

    def split_off(self, places: Iterable[int]) -> "RecordByHand | None":
        """What has a gradient and isn't at these places becomes a record of its own, with all that has happened to it."""
        parameters, samples = self.gradients.parameters, [leaf.sample for leaf in self.gradients.leaves]
        rest = [k for k, s in enumerate(samples) if s is not None and s.gradient.any() and k not in set(places)]
        if not rest or any(parameters[k].dtype in (torch.float16, torch.bfloat16) for k in rest):  # rounded to no move
            return None
        other = RecordByHand([parameters[k] for k in rest], self.gradients.died)
        ours, theirs = self.gradients, other.gradients
        for name in ("leaves", "seen", "versions", "ever"):
            setattr(theirs, name, [getattr(ours, name)[k] for k in rest])
        theirs.empty, theirs.came_as_zeros = ours.empty, ours.came_as_zeros
        for name in ("in_grad", "unused", "made", "scaled", "weights", "calls", "where"):
            setattr(other, name, getattr(self, name))
        other.in_grad = type(self.in_grad)(self.in_grad)
        ours.discard(theirs.ids)
        return other


class UpdatesByHand:
    """Finds the leaves, and tells when something has used their gradients."""

    def __init__(self, observer: Observer, history: History) -> None:
        self.observer, self.history = observer, history
        self.walked: Counter[str] = Counter()  # by line: graphs of backward calls
        self.walks = 0
        self.nearest_at: dict[str, WatchedRecord | None] = {}  # by line: whose parameters a call reaches first
        self.ended_at: dict[str, RecordByHand] = {}  # records that have ended, by the place of their first call
        self.unowned_at: dict[str, int] = {}  # parameters whose gradients nothing uses, by the same place
        self.thrown_away: Counter[str] = Counter()  # models that lived for one backward call, by the same place

    def walk(self, roots: list[Tensor], line: str, unexplained: bool) -> WatchedRecord | None:
        """Goes through the graph of the first calls on a line. `unexplained`: nothing got gradients from the last one.

        Returns:
            The record of the parameters that lie nearest to the roots.
        """
        if (self.walked[line] < _WALKS_A_LINE or unexplained) and self.walks < _WALKS:
            self.walked[line] += 1
            self.walks += 1
            reached = leaves(roots)
            nearest = id(reached[0]) if reached else None
            records = self.observer.records.values()
            self.nearest_at[line] = next((each for each in records if nearest in each.gradients.ids), None)
            self._find_unowned(reached)
        return self.nearest_at.get(line)

    def _find_unowned(self, reached: list[Tensor]) -> None:
        active = self.observer.active
        owned = set().union(*(record.gradients.ids for record in active))
        if any(record.gradients.shards for record in active):
            owned |= own_parameters(living(*keepers()))
        found = {id(leaf): leaf for leaf in reached if id(leaf) not in owned}
        if found:
            held = (p for record in self.observer.records.values() for p in record.gradients.parameters)
            memory = set(map(_memory, held)) - {0}
            new = [leaf for leaf in found.values() if _memory(leaf) not in memory]  # else a view of what one holds
            midway = self.observer.calls > 1 and not all(is_zero(leaf.grad) for leaf in new)
            if new and not midway:  # a window whose first backward calls were missed is not begun
                self.observer.add_by_hand(RecordByHand(new, self.observer.note_death))

    def wrote(self, record: RecordByHand) -> bool:
        moves = record.moves() if record.watched() and record.given_to is None else {}
        record.kept = []
        samples = [leaf.sample for leaf in record.gradients.leaves]
        if moves and not record.steps:
            for place in self._following(record, moves, samples):  # a target network, or a moving average
                del moves[place]
            agreed, counted = agreement((moved, samples[k]) for k, moved in moves.items())
            record.agreed, record.counted = record.agreed + agreed, record.counted + counted
            record.steps = bool(moves) and proves_an_update(record.agreed, record.counted)
        if not moves:
            return False
        if record.steps and all(leaf.telling for leaf in record.gradients.leaves):
            record.compare_few(moves)
        if not record.named_updates:
            if (rest := record.split_off(moves)) is not None:
                self.observer.add_by_hand(rest)
            earlier = self.ended_at.get(record.where)
            if earlier is not None:  # a perturbation for each batch, or a copy of the model: one record for all
                self._go_on(record, earlier)
        return True

    def _go_on(self, record: RecordByHand, earlier: RecordByHand) -> None:
        record.name, record.made, record.steps = earlier.name, earlier.made, True
        record.updates, record.lost = earlier.updates, earlier.lost
        for each in (*record.updates, *record.lost):
            each.record = record
        self.history.replace({earlier}, record)

    def _following(self, record: RecordByHand, moves: dict[int, Tensor], samples: list) -> list[int]:
        """Which of the parameters that moved have come nearer to another one."""
        parameters = record.gradients.parameters
        others = [p for other in self.observer.active for p in other.gradients.parameters]
        following = [k for k, moved in moves.items() if goes_towards(parameters[k], samples[k], moved, others)]
        return following if any(len(moves[k]) >= _MANY for k in following) else []

    def step_givers(self, taker: WatchedRecord) -> None:
        """The gradients that were put into this optimizer may be those of a copy of its model."""
        for record in self.observer.by_hand:
            samples = [leaf.sample for leaf in record.gradients.leaves]
            samples = [s for s in samples if s is not None and len(s.places) >= _FEW]
            if record.unused and samples and all(given_to(s, taker.gradients.parameters) for s in samples):
                record.steps = True
                self.observer.step(record)
                record.given_to = taker

    def ended(self, record: RecordByHand) -> bool:
        """Is it known that its gradients were used?"""
        gradients = record.gradients
        if gradients.dead or record.made:
            self.walked.clear()  # another model may come to the same lines
        if record.steps:
            record.by_itself = True
            record.loose = not any(leaf.named for leaf in gradients.leaves) and not gradients.dead
            self.ended_at[record.where] = record
            return True
        if record.name:
            self.history.forget(record)
        unowned = gradients.dead + sum(
            leaf.named and ever for leaf, ever in zip(gradients.leaves, gradients.ever, strict=True)
        )
        others = [other for other in self.observer.active if not other.by_hand and other.made]
        to_read = record.cleared and not record.beside and all(any(other.gradients.ever) for other in others)
        if unowned and not to_read:  # by the script itself
            self.unowned_at[record.where] = max(unowned, self.unowned_at.get(record.where, 0))
            self.thrown_away[record.where] += record.calls == 1 and not any(leaf.named for leaf in gradients.leaves)
            self.history.unowned_shapes |= record.shapes
            found = {at: count for at, count in self.unowned_at.items() if self.thrown_away[at] < _THROWN_AWAY}
            self.history.unowned = (sum(found.values()), next(iter(found))) if found else (0, "")
        return False


def _memory(tensor: Tensor) -> int:
    tensor = local(tensor)
    ordinary = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    return tensor.untyped_storage().data_ptr() if ordinary else id(tensor)
