"""Schedules of learning rates: when they were stepped, how long they are, and in what that length may be counted."""

import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import lr_scheduler

from gradaudit.callsite import is_users, where
from gradaudit.history import AuditedRecord
from gradaudit.observe.gradients import subclasses
from gradaudit.observe.ledger import Record
from gradaudit.observe.observer import Observer, before

_OF_A_LENGTH = re.compile(r"total|^t_?max$|length|(steps|iters?|iterations|updates)$", re.I)
_OF_A_PART = re.compile(r"warm|decay|cycle|restart|accum|per_|every|^_|^last_epoch$", re.I)


class Schedule:
    """What is known of the schedule of an optimizer's learning rate.

    Attributes:
        steps: How often it was stepped.
        lengths: After how many steps it comes to its end, as far as it says.
        numbers: All that its functions know. One may be the micro-batches of a window, by which it divides.
        own: Is the rate what a function or class of the script's says? Only the script knows what that counts.
        moved: Has any step changed the rate?
        at_zero: How many of the steps, at the end, left the rate at 0.
    """

    def __init__(self, scheduler: lr_scheduler.LRScheduler) -> None:
        lambdas = [each for each in getattr(scheduler, "lr_lambdas", ()) if each is not None]
        functions = [getattr(each, "func", each) for each in lambdas]
        own_class = _is_own(type(scheduler).get_lr)
        self.own = own_class or any(map(_is_own, functions))
        known = [*vars(scheduler).items()] if own_class else []
        for each in (*lambdas, *functions):
            known += [*getattr(each, "keywords", {}).items(), *_known_to(each)]
        known = [(name, value) for name, value in known if type(value) in (int, float)]
        named = {value for name, value in known if _OF_A_LENGTH.search(name) and not _OF_A_PART.search(name)}
        self.lengths = {_length_of(scheduler), max(named, default=0)} - {0}
        self.numbers = {value for _, value in known}
        self.steps = self.at_zero = 0
        self.moved = False


class Schedules:
    """Watches schedulers."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.thread = threading.local()
        self.watched: set[type] = set()  # classes whose step is watched
        self.numbers: WeakKeyDictionary[lr_scheduler.LRScheduler, int | None] = WeakKeyDictionary()  # which they are at
        self.found: WeakKeyDictionary[Record, Schedule] = WeakKeyDictionary()
        observer.patch(lr_scheduler.LRScheduler, "__init__", before(lambda new: self._watch(type(new).__mro__)))
        self._watch(subclasses(lr_scheduler.LRScheduler))

    def of(self, record: AuditedRecord) -> Schedule | None:
        return self.found.get(record)

    def _watch(self, schedulers: Iterable[type]) -> None:
        """A scheduler's class may be the script's own and younger than the audit."""
        for cls in schedulers:
            if "step" in vars(cls) and cls not in self.watched:
                self.watched.add(cls)
                self.observer.patch(cls, "step", self._around_step, warns=True)

    def _around_step(self, scheduler, *args, **kwargs) -> Generator:
        inside = getattr(self.thread, "inside", False)  # a scheduler may step others, or the one that it inherits from
        record = None if inside else self.observer.records.get(id(getattr(scheduler, "optimizer", None)))
        if record is not None:
            self.observer.look()
        counts = getattr(scheduler, "_step_count", 1)  # not the one that it makes when it is created
        rates = _rates(scheduler) if record is not None else None
        self.thread.inside = True
        try:
            yield
        finally:
            self.thread.inside = inside
            if record is not None:
                self._note(record, scheduler, bool(counts), rates)

    def _note(self, record: AuditedRecord, scheduler, counts: bool, rates: list) -> None:
        number, last, now = getattr(scheduler, "last_epoch", None), self.numbers.get(scheduler), _rates(scheduler)
        self.numbers[scheduler] = number
        if not counts:
            return
        schedule = self.found.get(record) or self.found.setdefault(record, Schedule(scheduler))
        schedule.steps += 1
        schedule.moved |= rates != now
        schedule.at_zero = 0 if any(now) else schedule.at_zero + 1
        if number == last and rates == now:  # the same number again
            pass
        elif record.unused:
            record.open.scheduled += ((record.unused, where()),)
        elif record.updates:
            record.updates[-1].scheduled_after += (where(),)


def _rates(scheduler: lr_scheduler.LRScheduler) -> list:
    """The learning rates. One that is a tensor counts as changed: reading it could wait for a GPU."""
    rates = [group["lr"] for group in scheduler.optimizer.param_groups]
    return [object() if isinstance(rate, Tensor) else rate for rate in rates]


def _length_of(scheduler: lr_scheduler.LRScheduler) -> int:
    """After how many steps one of PyTorch's own has come to its end; 0 if it says nothing of that."""
    if isinstance(scheduler, lr_scheduler.SequentialLR):
        *_, last = scheduler._schedulers
        return scheduler._milestones[-1] + _length_of(last)
    lengths = [getattr(scheduler, name, 0) for name in ("total_steps", "T_max", "total_iters")]
    lengths.append(max(getattr(scheduler, "milestones", None) or [0]))
    return max(length for length in lengths if isinstance(length, int))


def _is_own(function: Callable) -> bool:
    return is_users(getattr(getattr(function, "__code__", None), "co_filename", ""))


def _known_to(function: Callable) -> Iterator[tuple[str, object]]:
    """The names and values that a function uses from outside; and its constants, without a name."""
    code = getattr(function, "__code__", None)
    if code is not None:
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            with suppress(ValueError):  # it has been deleted
                yield name, cell.cell_contents
        yield from ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)
        yield from (("", value) for value in code.co_consts)
