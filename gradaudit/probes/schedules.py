"""Schedules of learning rates: when they were stepped, how long they are, and in what that length may be counted."""

from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from inspect import getclosurevars
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import lr_scheduler

from gradaudit.callsite import is_users, where
from gradaudit.history import AuditedLedger
from gradaudit.observe.gradients import subclasses
from gradaudit.observe.ledger import OptimizerLedger
from gradaudit.observe.observer import Observer

# Names of what says how long a schedule is
_LENGTHS = "num_training_steps", "total_steps", "total", "T_max", "total_iters"


class Schedule:
    """What is known of the schedule of an optimizer's learning rate.

    Attributes:
        steps: How often it was stepped.
        lengths: After how many steps it comes to its end, as far as it says.
        turns_at: After how many steps of a cosine the rate rises again; 0 of other schedules.
        own: Is the rate what a function or class of the script's says? Only the script knows what that counts.
    """

    def __init__(self, scheduler: lr_scheduler.LRScheduler) -> None:
        lambdas = [each for each in getattr(scheduler, "lr_lambdas", ()) if each is not None]
        self.own = any(map(_is_own, [type(scheduler).get_lr, *(getattr(each, "func", each) for each in lambdas)]))
        self.lengths = _lengths([vars(scheduler), *map(_known_to, lambdas)])
        if isinstance(scheduler, lr_scheduler.SequentialLR):  # the last of its schedules begins at the last milestone
            begins, last = scheduler._milestones[-1], scheduler._schedulers[-1]
            self.lengths = {begins + length for length in _lengths([vars(last)])}
        self.steps, self.turns_at = 0, getattr(scheduler, "T_max", 0)


def _lengths(known: list[dict]) -> set[float]:
    lengths = [each.get(name) for each in known for name in _LENGTHS]
    return {length for length in lengths if isinstance(length, int | float) and length}


class Schedules:
    """Watches schedulers."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.inside = False  # a scheduler may step others, or the one that it inherits from, and when it is made
        self.watched: set[type] = set()  # classes whose step is watched
        self.found: WeakKeyDictionary[OptimizerLedger, Schedule] = WeakKeyDictionary()
        self._watch(subclasses(lr_scheduler.LRScheduler))

    def _watch(self, schedulers: Iterable[type]) -> None:
        """A scheduler's class may be the script's own and younger than the audit."""
        for cls in schedulers:
            if issubclass(cls, lr_scheduler.LRScheduler) and cls not in self.watched:
                self.watched.add(cls)
                for name, around in (("__init__", self._around_init), ("step", self._around_step)):
                    if name in vars(cls):
                        self.observer.patch(cls, name, around)

    def _around_init(self, scheduler, *args, **kwargs) -> Generator:
        self._watch(type(scheduler).__mro__)
        inside, self.inside = self.inside, True
        try:
            yield
        finally:
            self.inside = inside

    def _around_step(self, scheduler, *args, **kwargs) -> Generator:
        inside = self.inside
        optimizer = getattr(scheduler, "optimizer", None)
        optimizer = getattr(optimizer, "optimizer", optimizer)  # what a framework has wrapped
        ledger = None if inside else self.observer.ledgers.get(id(optimizer))
        if ledger is not None:
            self.observer.look()
        self.inside = True
        try:
            yield
        finally:
            self.inside = inside
            if ledger is not None:
                self._note(ledger, scheduler)

    def note_rate(self, ledger: AuditedLedger) -> None:
        """A step is made: is its learning rate 0, after others that were not, and from then on?"""
        if ledger in self.found:
            rates = [group["lr"] for group in ledger.optimizer().param_groups]
            moves = any(isinstance(rate, Tensor) or rate > 0 for rate in rates)  # reading one could wait for a GPU
            ledger.rate_was_above_zero |= moves
            ledger.made_at_zero = 0 if moves else ledger.made_at_zero + ledger.rate_was_above_zero

    def _note(self, ledger: AuditedLedger, scheduler) -> None:
        schedule = self.found.get(ledger) or self.found.setdefault(ledger, Schedule(scheduler))
        schedule.steps += 1
        if ledger.unused:
            ledger.open.scheduled += ((ledger.unused, where()),)
        elif ledger.updates:
            ledger.updates[-1].scheduled_after += (where(),)


def _is_own(function: Callable) -> bool:
    return is_users(getattr(getattr(function, "__code__", None), "co_filename", ""))


def _known_to(function: Callable) -> dict[str, object]:
    """What it was given beforehand, by `partial` or by the function that it stands in, as libraries do."""
    known = dict(getattr(function, "keywords", {}))
    with suppress(TypeError, ValueError):  # it is no function of Python, or a variable has been deleted
        known |= getclosurevars(function).nonlocals
    return known
