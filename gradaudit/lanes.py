"""What the audit notes of each optimizer, and of parameters that something else updates."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import compress, count, islice
from weakref import ref

import torch
from torch import Tensor, nn

from gradaudit.history import Backward, Kept, Window, Zeroing
from gradaudit.manual import MANUAL, Sample, changed, is_telling, move, sample
from gradaudit.observe.observer import Lane, any_nonzero
from gradaudit.optimizers import may_collect, steps_its_own_way

_PATIENCE = 100  # backward calls without an update, or updates without a proof, until a manual lane is given up
_TELLING = 8  # parameters of a manual lane that are compared
_GLIMPSED = 3  # parameters whose numbers are remembered
_LOOKED_THROUGH = 20  # parameters, at most, to find as many whose numbers tell anything
_keys = count(1)


class AuditedLane(Lane):
    """An optimizer and the window that is being filled."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.own_step, self.collects = steps_its_own_way(args[0]), may_collect(args[0])
        self.key = next(_keys)
        self.updates = 0
        self.fresh = Kept()  # backward calls since the last step, and in which call of a closure each came
        self.follows = ""  # whose parameters it took over when that one ended
        self.cleared = False  # have its gradients been zeroed?
        self.scaled = 1.0  # the scaler's factor that is in .grad
        self.scaler = None  # a reference to the one that made it
        self.weights = -1  # their version at the last backward; -1 before the first
        self.open = Window()
        self.last: Window | None = None
        self.zeroings: list[Zeroing] = []  # since the last step, of gradients that no step had used
        self.glimpses: list[tuple[Tensor, Sample]] = []  # some numbers, as the last backward call left them
        self.moved = False  # its parameters changed before it made any step
        self.unstepped = False  # and so after a backward call, by a write that raised their versions
        self.strays = False  # they have been seen to change through `.data` between a backward call and a zeroing
        self.by_hand = False  # the script has been seen to write to gradients through `.data`
        self.through_data = False  # and so before the last step that was looked at
        self.retry: list[tuple[Tensor, Sample]] = []  # the glimpses that belonged to the last step
        self.foreign: list[tuple[Tensor, Sample]] = []  # of gradients from elsewhere, as the last step used them
        self.called = 0  # backward calls of the script until then
        self.tries_again = False  # a step has been made once more from the same weights
        self.reaches: dict[tuple[int, ...], frozenset[int]] = {}  # sets of parameters that backward calls have reached

    def add(self, p: Tensor) -> None:
        """A gradient that is there already came from before: nobody knows how many micro-batches it holds."""
        super().add(p)
        self.open.assigned |= not self.updates and p.grad is not None and any_nonzero(p.grad)

    @property
    def steps(self) -> bool:
        """Is it known that something uses its gradients?"""
        return True

    def let_go(self, stays: set[int]) -> None:
        super().let_go(stays)
        if not self.held:  # what became of the gradients is the script's affair
            for call, _ in self.fresh:
                call.used = True
            self.fresh = Kept()

    def glimpse(self) -> None:
        """Remembers some numbers of the first updates: a script may write through `.data`, which raises no version."""
        self.notice_a_move()
        found = [(p, sample(p, None)) for p in (self.parameters[place] for place in self.touched[:_GLIMPSED])]
        self.glimpses = [(p, numbers) for p, numbers in found if numbers is not None]

    def notice_a_move(self) -> None:
        moved = any(move(p, numbers) is not None for p, numbers in self.glimpses)
        self.moved |= not self.updates and moved
        self.strays |= moved

    def rewritten(self) -> bool:
        """Are the gradients, whose versions are those of the last backward call, no longer what it left?"""
        return any(p.grad is not None and changed(p.grad, numbers) for p, numbers in self.glimpses)

    def used_before(self, calls: int) -> bool:
        """Are gradients from elsewhere those that the last step has used, although there were backward calls since?"""
        found = ((p, sample(p, None)) for p in self.parameters[:_LOOKED_THROUGH])
        telling = ((p, numbers) for p, numbers in found if numbers is not None and is_telling(numbers))
        before, self.foreign = self.foreign, list(islice(telling, _GLIMPSED))
        called, self.called = calls > self.called, calls
        return called and bool(before) and not any(p.grad is None or changed(p.grad, then) for p, then in before)

    def back_where_it_was(self) -> bool:
        """Are the weights again those that the last backward call was made with, although a step has been made?"""
        moves = [move(p, numbers) for p, numbers in self.retry]
        return any(moved is not None for moved in moves) and not any(
            moved is not None and moved.any() for moved in moves
        )

    def lost(self) -> list[Backward]:
        """The calls that no step has used, if nothing uses them from now on."""
        return [call for call, _ in self.fresh if not call.used]


class ManualLane(AuditedLane):
    """Leaves that no optimizer holds. They are kept alive only from a backward call until the next event."""

    per_parameter = ("refs", "named", "seen", "versions", "ever", "telling", "samples")
    shapes: Counter  # of the parameters that it has held

    def __init__(self, leaves: Iterable[Tensor], died: Callable[[ref], None]) -> None:
        self.refs: list[ref] = []
        self.named: list[bool] = []  # is it a parameter of a module, not just a tensor?
        self.telling: list[bool] = []  # is it one of those that are compared?
        self.samples: list[Sample | None] = []  # taken at the last backward call
        self.kept: list[Tensor] = []  # so that an update before they die is seen
        self.shapes = Counter()
        super().__init__(None)
        self.manual, self.kind, self.name, self.died = True, MANUAL, "", died
        self.calls, self.where = 0, ""  # backward calls, and where the first of them was
        self.agreed = self.counted = 0  # signs of the first updates, as `agreement` counts them
        self.stepped = False
        self.proven = False  # has it been seen that the gradients are used?
        self.dead = 0  # parameters that had gradients
        self.beside = False  # did any backward call bring gradients to an optimizer's parameters as well?
        for leaf in leaves:
            self.add(leaf)

    @property
    def parameters(self) -> list[Tensor]:
        alive = [leaf() for leaf in self.refs]
        if any(leaf is None for leaf in alive):
            stays = [leaf is not None for leaf in alive]
            self.dead += sum(n and e and not s for n, e, s in zip(self.named, self.ever, stays, strict=True))
            alive = list(compress(alive, stays))
            for name in self.per_parameter:
                setattr(self, name, list(compress(getattr(self, name), stays)))
            self.ids, self.uncleared = set(map(id, alive)), []
        return alive

    @parameters.setter
    def parameters(self, _: list) -> None:
        pass  # only `add` adds any

    def add(self, p: Tensor) -> None:
        super().add(p)
        self.refs.append(ref(p, self.died))
        self.named.append(isinstance(p, nn.Parameter))
        self.shapes[tuple(p.shape)] += 1
        self.telling.append(True)
        self.samples.append(None)

    @property
    def loose(self) -> bool:
        """Is it of tensors that are no parameters of a module, such as an attack's perturbation?"""
        return not any(self.named) and not self.dead

    @property
    def steps(self) -> bool:
        return self.proven

    def watched(self) -> bool:
        """Is it still worth a comparison of values?"""
        return self.proven or max(self.calls, self.updates) <= _PATIENCE

    def take_samples(self) -> None:
        self.kept = self.parameters
        if not any(self.telling):
            self.telling = [True] * len(self.kept)
        for place, p in enumerate(self.kept):
            self.samples[place] = sample(p, self.samples[place]) if self.telling[place] else None

    def compare_few(self, moved: Iterable[int]) -> None:
        """From now on, which saves time: some of the parameters that an update has moved."""
        places = sorted(moved)
        few = set(places[:: 1 + len(places) // _TELLING])
        self.telling = [place in few for place in range(len(self.telling))]

    def moves(self) -> dict[int, Tensor]:
        """By place, how far the parameters have moved since the last backward call."""
        moves = {place: move(p, self.samples[place]) for place, p in enumerate(self.parameters)}
        return {place: moved for place, moved in moves.items() if moved is not None}

    def without(self, places: Iterable[int]) -> "ManualLane | None":
        """What else has a gradient becomes a lane of its own, with all that has happened to it."""
        parameters = self.parameters
        rest = [k for k, s in enumerate(self.samples) if s is not None and s.gradient.any() and k not in set(places)]
        if not rest or any(parameters[k].dtype in (torch.float16, torch.bfloat16) for k in rest):  # rounded to no move
            return None
        other = ManualLane([parameters[k] for k in rest], self.died)
        for name in self.per_parameter:
            setattr(other, name, [getattr(self, name)[k] for k in rest])
        for name in ("empty", "came_as_zeros", "held", "unused", "updates", "scaled", "weights", "calls", "where"):
            setattr(other, name, getattr(self, name))
        other.fresh = Kept(self.fresh)
        self.discard(other.ids)
        return other
