"""Watches any training loop while it runs, without a change to its code, keeps the ledger, and tells a listener.

Every hook and every patch of the instruments is detached again here, however the block ends:

- a step is seen by the hooks that PyTorch runs around every `optimizer.step`;
- a backward call is seen because `torch.autograd.backward` is wrapped;
- everything else that happens to gradients is seen by comparison: see `gradients`;
- no error of the instruments' own reaches the script: all of their code is called by a `Guard`.
"""

import gc
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gradaudit.interrupts import uninterrupted
from gradaudit.observe.gradients import living, subclasses, tensors_in
from gradaudit.observe.guard import Guard
from gradaudit.observe.ledger import Call, Record, Update, Zeroing
from gradaudit.observe.patches import patch
from gradaudit.observe.uncompiled import leave_uncompiled


class Listener:
    """What an observer can tell. A listener overrides what it needs to hear; the other methods do nothing.

    The ledger is brought up to date first: `record.in_grad`, `record.updates` and `record.lost` say what came of it.
    """

    who = "The observer"  # in the words of a warning
    record_type = Record  # may have more to note for each optimizer
    hears_zeroing_at_once = True  # else at the next event, if it was of gradients that a step has used

    def attach(self, observer: "Observer") -> None:
        """The block begins. Further functions may be wrapped with `observer.patch`."""

    def backward_begins(self, number: int, roots: list[Tensor], given: bool) -> Call:
        """Returns the call. `given`: gradients of the roots were passed."""
        return Call(number)

    def received(self, record: Record, call: Call) -> None:
        """A backward call has added to the record's gradients."""

    def backward_ends(self, call: Call) -> None:
        pass

    def wrote(self, record: Record) -> bool:
        """Has something used the gradients of a record without optimizer, and written to its parameters?"""
        return False

    def zeroed(self, record: Record, zeroing: Zeroing) -> None:
        """All gradients of the record are `None` or zero now."""

    def changed(self, record: Record, assigned: bool) -> None:
        """Something else was written to gradients. `assigned`: they have come from elsewhere than a backward call."""

    def stepped(self, record: Record, update: Update) -> None:
        """An optimizer uses what it holds, or has used it if it called a closure."""

    def ended(self, record: Record) -> None:
        """The record's optimizer has died, or the block ends."""

    def overlapped(self) -> None:
        """Backward calls of several threads overlap, so that who received what cannot be told apart."""

    def gave_up(self, failure: str) -> None:
        """The observer, or this listener, has failed, and nothing more will be told."""


@contextmanager
def observing(listener: Listener) -> Iterator[None]:
    """Tells the listener what the training loops inside the block do. Blocks may be nested, and may overlap.

    An error of the listener, or of the observer, is no error of the block's: it ends the watching with an
    `ObserverFailure`, which is a warning.

    Args:
        listener: Its methods are called as things happen.

    Example:
        >>> class Steps(Listener):
        ...     def stepped(self, record, update):
        ...         print(record.name, "uses", update.held, "backward calls")
        >>> w = torch.ones(2, requires_grad=True)
        >>> optimizer = torch.optim.SGD([w], lr=0.1)
        >>> with observing(Steps()):
        ...     w.sum().backward()
        ...     optimizer.step()
        SGD uses 1 backward calls
    """
    observer = Observer(listener)
    try:
        with uninterrupted():
            observer.guard(observer.attach)()
        yield
    finally:
        try:
            with uninterrupted():
                observer.finish()
        except KeyboardInterrupt:
            observer.finish()  # it may have come just before
            raise


class Observer:
    """Finds the optimizers, attaches the hooks and patches, and keeps the ledger by what they see."""

    def __init__(self, listener: Listener) -> None:
        self.listener, self.hears_zeroing_at_once = listener, listener.hears_zeroing_at_once
        self.guard = Guard(listener.who, "your script goes on unwatched", self._give_up)
        self.undo = ExitStack()
        self.records: dict[int, Record] = {}  # by the id of the optimizer
        self.by_hand: list[Record] = []  # records that the listener has added: no optimizer holds their parameters
        self.active: list[Record] = []  # all records; replaced, never changed, since threads go through it
        self.died = False  # has an optimizer died since the last look?
        self.names: Counter[str] = Counter()
        self.calls = 0
        self.running: dict[int, Call] = {}  # backward calls, by thread
        self.options = (None, None)  # retain_graph and create_graph of the last backward call
        self.probes: dict[int, list] = defaultdict(list)  # hooks for one backward call, by thread
        self.threads: set[int] = set()  # those that train

    def attach(self) -> None:
        leave_uncompiled("gradaudit", *{cls.__module__ for cls in type(self.listener).__mro__ if cls is not object})
        self.undo.callback(register_optimizer_step_pre_hook(self.guard(self._before_step)).remove)
        self.undo.callback(register_optimizer_step_post_hook(self.guard(self._after_step)).remove)
        self.patch(torch.autograd, "backward", self._around_backward, used_up=True)
        self.patch(Optimizer, "add_param_group", after(self.record_of))
        self.patch(Optimizer, "zero_grad", self._around_zero_grad)
        self.patch(nn.Module, "zero_grad", after(lambda _: self.look()))
        self.listener.attach(self)
        used = [kind for kind in subclasses(Optimizer) if hasattr(kind.step, "hooked")]  # by its first object
        gc.collect(1)  # then all living objects are of one age, in their order; the younger would come first
        for optimizer in living(*used):
            self.record_of(optimizer)

    def patch(self, owner: object, name: str, watch: Callable[..., Generator], used_up: bool = False) -> None:
        """Until the block ends, each call of `owner.name` is watched by a generator, as `Guard.around` says."""
        self.undo.callback(patch(owner, name, self.guard.around(watch, used_up)))

    def probe(self, register: Callable, note: Callable) -> None:
        """Registers a hook for as long as this thread's backward call runs."""
        self.probes[threading.get_ident()].append(register(self.guard(note)))

    def finish(self) -> None:
        try:
            self.guard(self._end_records)()
        finally:
            self._let_go()
            try:
                self.undo.close()
            except Exception as error:
                self.guard.fail(error)

    def _end_records(self) -> None:
        self.look(values=True)
        for record in (*self.records.values(), *self.by_hand):
            self.listener.ended(record)

    def _let_go(self) -> None:
        """Keeps nothing of the script's alive any more."""
        for record in self.active:
            record.gradients.let_go()
        self.records.clear()
        self.active, self.by_hand = [], []

    def _give_up(self, failure: str) -> None:
        self._let_go()
        self.listener.gave_up(failure)

    # Records

    def record_of(self, optimizer: Optimizer) -> Record | None:
        """The optimizer's record. Wrappers, as frameworks put around an optimizer, have none: what they wrap steps."""
        record = self.records.get(id(optimizer))
        if record is None or record.optimizer() is not optimizer:
            if not hasattr(type(optimizer).step, "hooked") or not hasattr(optimizer, "param_groups"):
                return None
            if record is not None:  # of a dead optimizer that lay at the same address
                self._end(record)
            record = self.records[id(optimizer)] = self.listener.record_type(optimizer, self.note_death)
            if threading.current_thread() is not threading.main_thread():  # which trains what it makes
                self._trains(record)
            self._list_records()
        self._update(record)
        for other in self.by_hand:
            if not other.gradients.ids.isdisjoint(record.gradients.ids):
                other.gradients.discard(record.gradients.ids)
                if not other.gradients.ids and not other.name:  # nothing can happen to it any more
                    self.by_hand = [each for each in self.by_hand if each is not other]
                    self._list_records()
        return record

    def update(self) -> None:
        """The optimizers may hold other parameters by now."""
        for record in self.own():
            if not record.by_hand:
                self._update(record)

    @staticmethod
    def _update(record: Record) -> None:
        optimizer = record.optimizer()
        if optimizer is not None and record.gradients.update(optimizer):  # what became of the gradients is its affair
            for call in record.in_grad:
                call.read = True
            record.forget()

    def add_by_hand(self, record: Record) -> None:
        self.by_hand = [*self.by_hand, record]
        self._list_records()

    def _list_records(self) -> None:
        self.active = [*self.records.values(), *self.by_hand]

    def own(self) -> list[Record]:
        """The records that this thread may look at. Another thread may be writing to the others' gradients just now."""
        me = threading.get_ident()
        if len(self.threads) < 2 and (not self.threads or me in self.threads):
            return self.active
        alive = {thread.ident for thread in threading.enumerate()}
        return [each for each in self.active if each.shared or each.thread in (me, None) or each.thread not in alive]

    def _trains(self, record: Record) -> None:
        """This thread works with the record."""
        me = threading.get_ident()
        if record.thread != me:
            self.threads.add(me)
            record.shared |= record.thread is not None
            record.thread = me

    def note_death(self, _) -> None:
        """Of an optimizer, or of a parameter that none has."""
        self.died = True

    def _end_dead_records(self) -> None:
        self.died, own = False, self.own()
        for key, record in list(self.records.items()):
            if record.optimizer() is None:
                self.records.pop(key, None)
                if record in own:
                    self._look_at(record)
                self._hand_over(record) or self._end(record)
        for record in self.by_hand:
            if not record.gradients.parameters:
                self._end(record)
        self.by_hand = [record for record in self.by_hand if record.gradients.parameters]
        self._list_records()

    def _hand_over(self, record: Record) -> bool:
        """A script may create a new optimizer for each update, over the same parameters: then these are one."""
        for key, other in self.records.items():
            alike = other.kind == record.kind and other.gradients.ids == record.gradients.ids
            new = other.optimizer() is not None and not (other.made or other.in_grad)
            if alike and new and record.made == record.optimizers:
                record.optimizer, record.optimizers = other.optimizer, record.optimizers + 1
                self.records[key] = record
                return True
        return False

    def _end(self, record: Record) -> None:
        self.listener.ended(record)
        record.gradients.let_go()

    def name(self, record: Record) -> str:
        """Records are named in the order in which gradients come to them; those that do nothing take no name."""
        if not record.name:
            self.names[record.kind] += 1
            number = self.names[record.kind]
            record.name = f"{record.kind} {number}" if number > 1 else record.kind
        return record.name

    # Between the events

    def look(self, values: bool = False) -> None:
        """What has happened to the gradients since the last event? Inside a backward call this cannot be told.

        Args:
            values: Also read values: old code zeroes through `.data`, which raises no version.
        """
        if self.running:
            if self.inside() is None:
                self.listener.overlapped()
            return
        if self.died:
            self._end_dead_records()
        alive = self._see_updates_by_hand() if self.by_hand else None  # until this look has ended
        for record in self.own():
            if not record.by_hand or record.gradients.parameters:
                self._look_at(record, values)
        del alive

    def _see_updates_by_hand(self) -> list[list[Tensor]]:
        alive = [record.gradients.parameters for record in self.by_hand]
        for record in self.own():
            if record.by_hand and record.unused and self.listener.wrote(record):
                self.step(record)
        return alive

    def overlook(self) -> None:
        """What has been written to gradients since the last event is no change by the script."""
        if not self.running:
            for record in self.own():
                record.gradients.compare()

    def _look_at(self, record: Record, values: bool = False) -> None:
        gradients = record.gradients
        if not gradients.compare():
            if not values:
                return
            if gradients.empty:
                if not (gradients.without_gradients or gradients.all_zero()):
                    gradients.empty, gradients.unversioned = False, True
                    self.listener.changed(record, assigned=True)
            elif self._may_be_zeroed(record) and gradients.all_zero():
                gradients.unversioned = True
                self._zeroed(record)
            return
        was_empty, gradients.empty = gradients.empty, gradients.without_gradients or gradients.all_zero()
        if gradients.empty:
            self._zeroed(record)
        else:
            assigned = was_empty or (gradients.put and not record.unused)
            gradients.came_as_zeros = False
            record.changed(replaced=assigned)
            self.listener.changed(record, assigned)

    @staticmethod
    def _may_be_zeroed(record: Record) -> bool:
        """Could old code have zeroed its gradients through `.data`, and are values read in this window?"""
        gradients = record.gradients
        return bool(record.in_grad) and not gradients.came_as_zeros and (gradients.is_read or not record.unused)

    def _zeroed(self, record: Record) -> None:
        zeroing = record.zeroed()
        self.listener.zeroed(record, zeroing)
        record.gradients.begin_again()

    def _around_zero_grad(self, optimizer: Optimizer, *args, **kwargs) -> Generator:
        yield
        if self.hears_zeroing_at_once or self.running or any([record.unused for record in self.active]):
            self.look()
        if self.running and self.inside() is not None:  # an optimizer that steps and zeroes inside a backward call
            record = self.record_of(optimizer)
            if record is not None:
                self._look_at(record)

    # Backward and step

    def inside(self) -> Call | None:
        """The backward call that this thread is in the middle of, or None."""
        call = self.running.get(threading.get_ident())
        if call is None and isinstance(threading.current_thread(), threading._DummyThread):
            call = next(reversed(list(self.running.values())), None)  # a thread of autograd's own, one for each GPU
        return call

    def _around_backward(
        self, tensors=(), grad_tensors=None, retain_graph=None, create_graph=False, grad_variables=None, *args, **kwargs
    ) -> Generator:
        if self.running and self.inside() is not None:  # a checkpoint runs a backward inside the backward
            return
        self.look(values=True)
        self.update()
        roots = [tensors] if isinstance(tensors, Tensor) else tensors_in(tensors)
        given = grad_tensors is not None or grad_variables is not None
        self.options = retain_graph, create_graph
        me = threading.get_ident()
        try:
            self.calls += 1
            call = self.listener.backward_begins(self.calls, roots, given)
            if self.running:
                self.listener.overlapped()
            self.running[me] = call
            try:
                yield
            finally:
                del self.running[me]
                if self.guard.failure is None:
                    for record in self.own():
                        self._receive(record, call)
                    self.listener.backward_ends(call)
        finally:
            for probe in self.probes.pop(me, ()):
                probe.remove()

    def _receive(self, record: Record, call: Call) -> None:
        """If the record's parameters have got gradients from this backward call, the ledger says so from now on."""
        gradients = record.gradients
        if not gradients.compare():
            return
        if record.thread != threading.get_ident():
            self._trains(record)
        first = not record.in_grad
        if first:
            gradients.begin_window()
        gradients.came(first)
        if not record.in_closure:  # whatever step was running has ended, perhaps by an exception
            record.depth, record.evaluation = 0, None
        record.received(call)
        record.name or record.by_hand or self.name(record)
        self.listener.received(record, call)

    def _before_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        record = None if is_dynamo_compiling() else self.record_of(optimizer)
        if record is None:
            return None
        if record.thread != threading.get_ident():
            self._trains(record)
        call = self.inside() if self.running else None
        if call is not None:  # an optimizer that steps inside a backward call
            self._receive(record, call)
        self.look(values=True)
        record.depth += 1
        if record.depth > 1:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            found_inf = getattr(optimizer, "found_inf", None)  # set by a scaler while a fused optimizer steps
            self.step(record, skipped=found_inf is not None and bool(found_inf))
            return None
        record.evaluation = 0
        watched = self._watched_closure(record, closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _watched_closure(self, record: Record, closure: Callable) -> Callable:
        def evaluate(*args, **kwargs):
            record.begin_evaluation()
            try:
                return closure(*args, **kwargs)
            except BaseException:
                record.depth, record.evaluation = 0, None  # the step ends with this, and no hook will tell
                raise
            finally:
                record.in_closure = False

        return evaluate

    def _after_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        record = None if is_dynamo_compiling() else self.records.get(id(optimizer))  # known before the step
        if record is None:
            return
        record.depth = max(0, record.depth - 1)
        if record.evaluation is not None and not record.depth:
            self.look()
            self.step(record)
            record.evaluation = None

    def step(self, record: Record, skipped: bool = False) -> None:
        gradients = record.gradients
        if gradients.came_as_zeros and record.evaluation is None:  # a step on zeros uses nothing
            record.found_zeros()
            gradients.begin_again()
        record.name or self.name(record)
        self.listener.stepped(record, record.stepped(skipped))
        if gradients.waits:  # what no step can reach counts with this window, not once more with the next
            record.forget()


def before(look: Callable) -> Callable[..., Generator]:
    """Watches each call of a function by calling `look` with the first argument before it."""

    def watch(first, *args, **kwargs):
        look(first)
        yield

    return watch


def after(look: Callable) -> Callable[..., Generator]:
    """Watches each call of a function by calling `look` with the first argument after it."""

    def watch(first, *args, **kwargs):
        yield
        look(first)

    return watch
