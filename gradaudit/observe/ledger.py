"""The ledger: which calls of `backward()` are in `.grad`, which update used them, and which were lost.

It exists once. The observer keeps it by four transitions: a call is `received`, an optimizer has `stepped`, gradients
are `zeroed` or `changed`. What shows or judges a training loop reads it.
"""

from dataclasses import dataclass, field
from weakref import ref

from torch.optim import Optimizer

from gradaudit.observe.gradients import Gradients


class Kept(list):
    """A list of which `trimmed()` keeps the first `half` and the last `half` items; `total` counts all there were.

    Appending is that of any list, which is fast, so whatever fills it must trim it now and then.
    """

    half = 2_500
    dropped = 0

    def trimmed(self) -> "Kept":
        """The same list, or a shorter copy: if the long one has been kept, it is whole."""
        if len(self) <= 2 * self.half:
            return self
        short = type(self)(self[: self.half] + self[-self.half :])
        short.dropped = self.total - len(short)
        return short

    @property
    def total(self) -> int:
        return len(self) + self.dropped


def last(count: int, items: list) -> list:
    """So many of the last items, or all.

    >>> last(2, [1, 2, 3]), last(0, [1, 2, 3]), last(5, [1, 2, 3])
    ([2, 3], [], [1, 2, 3])
    """
    return items[-count:] if count else []


@dataclass(eq=False, slots=True)
class Call:
    """One call of `backward()`.

    Attributes:
        number: Counts them from 1.
        used_by: The updates that were made with its gradients, of each optimizer the first.
        read: Whether something else has used them, such as a step that a scaler skipped.
    """

    number: int
    used_by: list["Update"] = field(default_factory=list, init=False)
    read: bool = field(default=False, init=False)

    @property
    def used(self) -> bool:
        return self.read or bool(self.used_by)


@dataclass(eq=False, slots=True)
class Update:
    """A step of an optimizer. While its window is being filled, it is the ledger's `open` one, without a number.

    Attributes:
        number: Counts the optimizer's updates from 1.
        fresh: The calls that it was the first update of this optimizer to use.
        held: How many calls' gradients it used in all.
        stale: How many of these an earlier update had used already.
        skipped: Whether a scaler found an overflow, so that the optimizer's step was not made.
        zeros: Calls since the last update that brought nothing but zeros, so that it used nothing.
        in_grad, count: The calls in `.grad` then, and how many; the list may have grown since.
    """

    ledger: "OptimizerLedger"
    number: int = 0
    fresh: list[Call] = field(default_factory=list)
    held: int = 0
    stale: int = 0
    skipped: bool = False
    zeros: list[Call] = field(default_factory=list)
    in_grad: Kept = field(default_factory=Kept)
    count: int = 0

    @property
    def calls(self) -> list[Call]:
        """All of the calls whose gradients it used, in order; of very many, the first and the last."""
        return self.in_grad[: self.count]


@dataclass(eq=False)
class Zeroing:
    """Gradients became zero, or None.

    Attributes:
        calls: Those whose gradients no update of this optimizer had used.
        after: How many updates it had made before.
    """

    calls: list[Call]
    after: int


class OptimizerLedger:
    """What an optimizer's gradients go through, in the ledger.

    Attributes:
        in_grad: The calls whose gradients are in `.grad`, in order.
        unused: How many of them, the last ones, no update has held.
        unmade: How many of them no update was made with: also those that only skipped updates have held.
        updates: Its steps, and those that a scaler skipped.
        lost: The zeroings of gradients that no update had used.
        made: How many updates there were, also of those that are no longer kept.
        open: The update that is being filled.
        gradients: What is seen of the tensors.
    """

    update_type, gradients_type = Update, Gradients
    by_hand = False  # are its gradients used by something else than an optimizer of PyTorch's?

    def __init__(self, optimizer: Optimizer | None) -> None:
        self.optimizer = (lambda: None) if optimizer is None else ref(optimizer)  # a loop may drop its optimizers
        self.kind = type(optimizer).__name__
        self.name = ""  # the observer names a ledger when it is first used
        self.gradients = self.gradients_type()
        self.in_grad, self.unused, self.unmade, self.made = Kept(), 0, 0, 0
        self.updates, self.lost = Kept(), Kept()
        self.open = self.update_type(self)
        self.depth = 0  # of the step that is running: a step may call the step that it inherits
        self.calls_closure = False  # does that step call a closure of the script's?

    def __getstate__(self) -> dict:
        """The ledger alone can be pickled, as on its way from another rank."""
        names = ("name", "kind", "in_grad", "unused", "unmade", "updates", "lost", "made", "open")
        return {name: getattr(self, name) for name in names}

    def received(self, call: Call) -> None:
        self.in_grad.append(call)
        self.unused, self.unmade = self.unused + 1, self.unmade + 1
        if self.calls_closure:  # an optimizer that calls its closure reads every gradient of it
            call.read = True

    def stepped(self, skipped: bool) -> Update:
        update, self.open = self.open, self.update_type(self)
        self.made += 1
        update.number, update.skipped = self.made, skipped
        update.in_grad, update.count, update.held = self.in_grad, len(self.in_grad), self.in_grad.total
        update.fresh, update.stale = last(self.unused, self.in_grad), update.held - self.unused
        for call in last(self.unmade, self.in_grad):
            if skipped:
                call.read = True
            else:
                call.used_by.append(update)
        self.unused, self.unmade = 0, self.unmade if skipped else 0
        self.updates.append(update)
        return update

    def zeroed(self) -> Zeroing:
        zeroing = Zeroing(last(self.unused, self.in_grad), self.made)
        if zeroing.calls:
            self.lost.append(zeroing)
        self.forget()
        self.open = self.update_type(self)
        return zeroing

    def found_zeros(self) -> None:
        """All that backward calls have brought is zeros: the step that comes uses nothing."""
        self.open = self.update_type(self, zeros=last(self.unused, self.in_grad))
        self.forget()

    def forget(self) -> None:
        """Nothing is in `.grad` any more."""
        self.in_grad = Kept()  # a new one: the updates keep those that they used
        self.unused = self.unmade = 0

    def changed(self, replaced: bool) -> None:
        """Something was written to gradients. `replaced`: nothing is left of what earlier updates had used."""
        if replaced:
            self.in_grad, self.unmade = Kept(last(self.unused, self.in_grad)), self.unused

    def trim(self) -> None:
        """Of a long run, the first and the last are kept."""
        for update in self.updates[Kept.half : -Kept.half]:
            update.in_grad = Kept()  # or what is kept would keep it, and that an earlier one, where nothing is zeroed
        self.in_grad, self.updates, self.lost = self.in_grad.trimmed(), self.updates.trimmed(), self.lost.trimmed()
