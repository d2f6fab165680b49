"""Watches any training loop while it runs, without a change to its code, keeps the ledger, and tells a listener.

Every hook and every patch of the instruments is detached again here, however the block ends:

- a step is seen by the hooks that PyTorch runs around every `optimizer.step`;
- a backward call is seen because `torch.autograd.backward` is wrapped;
- everything else that happens to gradients is seen by comparison: see `gradients`;
- no error of the instruments' own reaches the script: all of their code is called by a `Guard`.
"""

import gc
import threading
from collections import Counter
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
from gradaudit.observe.ledger import Call, OptimizerLedger, Update, Zeroing
from gradaudit.observe.patches import patch


class Listener:
    """What an observer can tell. A listener overrides what it needs to hear; the other methods do nothing.

    The ledger is brought up to date first: `ledger.in_grad`, `ledger.updates` and `ledger.lost` say what came of it.
    """

    who = "The observer"  # in the words of a warning
    ledger_type = OptimizerLedger  # may have more to note for each optimizer

    def attach(self, observer: "Observer") -> None:
        """The block begins. Further functions may be wrapped with `observer.patch`."""

    def backward_begins(self, number: int, roots: list[Tensor], given: bool) -> Call:
        """Returns the call. `given`: gradients of the roots were passed."""
        return Call(number)

    def received(self, ledger: OptimizerLedger, call: Call) -> None:
        """A backward call has added to the ledger's gradients."""

    def backward_ends(self, call: Call) -> None:
        pass

    def wrote(self, ledger: OptimizerLedger) -> bool:
        """Has something used the gradients of a ledger without optimizer, and written to its parameters?"""
        return False

    def zeroed(self, ledger: OptimizerLedger, zeroing: Zeroing) -> None:
        """All gradients of the ledger are `None` or zero now."""

    def changed(self, ledger: OptimizerLedger, assigned: bool) -> None:
        """Something else was written to gradients. `assigned`: they have come from elsewhere than a backward call."""

    def stepped(self, ledger: OptimizerLedger, update: Update) -> None:
        """An optimizer uses what it holds, or has used it if it called a closure."""

    def ended(self, ledger: OptimizerLedger) -> None:
        """The ledger's optimizer has died, or the block ends."""

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
        ...     def stepped(self, ledger, update):
        ...         print(ledger.name, "uses", update.held, "backward calls")
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
        self.listener = listener
        self.guard = Guard(listener.who, "your script goes on unwatched", listener.gave_up)
        self.undo = ExitStack()
        self.ledgers: dict[int, OptimizerLedger] = {}  # by the id of the optimizer
        self.by_hand: list[OptimizerLedger] = []  # added by the listener: no optimizer holds their parameters
        self.names: Counter[str] = Counter()
        self.calls = 0
        self.running: Call | None = None  # the backward call that is under way
        self.thread: int | None = None  # in which it was made
        self.options = (None, None)  # retain_graph and create_graph of the last backward call
        self.probes: list = []  # hooks for the backward call that runs

    @property
    def active(self) -> list[OptimizerLedger]:
        """All ledgers."""
        return [*self.ledgers.values(), *self.by_hand]

    def attach(self) -> None:
        self.undo.callback(register_optimizer_step_pre_hook(self.guard(self._before_step)).remove)
        self.undo.callback(register_optimizer_step_post_hook(self.guard(self._after_step)).remove)
        self.patch(torch.autograd, "backward", self._around_backward, used_up=True)
        self.patch(Optimizer, "add_param_group", after(self.ledger_of))
        self.patch(Optimizer, "zero_grad", self._around_zero_grad)
        self.patch(nn.Module, "zero_grad", after(lambda _: self.look()))
        self.patch(torch.utils, "swap_tensors", self._around_swap)
        self.listener.attach(self)
        used = [kind for kind in subclasses(Optimizer) if hasattr(kind.step, "hooked")]  # by its first object
        gc.collect(1)  # then all living objects are of one age, in their order; the younger would come first
        for optimizer in living(*used):
            self.ledger_of(optimizer)

    def patch(self, owner: object, name: str, watch: Callable[..., Generator], used_up: bool = False) -> None:
        """Until the block ends, each call of `owner.name` is watched by a generator, as `Guard.around` says."""
        self.undo.callback(patch(owner, name, self.guard.around(watch, used_up)))

    def probe(self, register: Callable, note: Callable) -> None:
        """Registers a hook for as long as the backward call runs."""
        self.probes.append(register(self.guard(note)))

    def finish(self) -> None:
        try:
            self.guard(self._end_ledgers)()
        finally:
            for ledger in self.active:  # nothing of the script's is kept alive any more
                ledger.gradients.let_go()
            self.ledgers, self.by_hand = {}, []
            self.undo.close()

    def _end_ledgers(self) -> None:
        self.look(values=True)
        for ledger in self.active:
            self.listener.ended(ledger)

    # Ledgers

    def ledger_of(self, optimizer: Optimizer) -> OptimizerLedger | None:
        """The optimizer's ledger. Wrappers, as frameworks put around an optimizer, have none: what they wrap steps.

        Nor has one of a model in FSDP1, where the gradients of several micro-batches come and go.
        """
        ledger = self.ledgers.get(id(optimizer))
        if ledger is None or ledger.optimizer() is not optimizer:
            parameters = [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]
            in_fsdp1 = any(hasattr(p, "_fsdp_flattened") for p in parameters)
            if not parameters or in_fsdp1 or not hasattr(type(optimizer).step, "hooked"):
                return None
            if ledger is not None:  # of a dead optimizer that lay at the same address
                self._end(ledger)
            ledger = self.ledgers[id(optimizer)] = self.listener.ledger_type(optimizer)
        self._update(ledger)
        for other in self.by_hand:
            if not other.gradients.ids.isdisjoint(ledger.gradients.ids):
                other.gradients.discard(ledger.gradients.ids)
                if not other.gradients.ids and not other.name:  # nothing can happen to it any more
                    self.by_hand = [each for each in self.by_hand if each is not other]
        return ledger

    @staticmethod
    def _update(ledger: OptimizerLedger) -> None:
        optimizer = ledger.optimizer()
        if optimizer is not None and ledger.gradients.update(optimizer):  # what became of the gradients is its affair
            for call in ledger.in_grad:
                call.read = True
            ledger.forget()

    def add_by_hand(self, ledger: OptimizerLedger) -> None:
        self.by_hand = [*self.by_hand, ledger]

    def _end_dead_ledgers(self) -> None:
        for key, ledger in list(self.ledgers.items()):
            if ledger.optimizer() is None:
                self._look_at(ledger)
                self.ledgers.pop(key, None)
                self._end(ledger)
        for ledger in self.by_hand:
            if not ledger.gradients.parameters:
                self._end(ledger)
        self.by_hand = [ledger for ledger in self.by_hand if ledger.gradients.parameters]

    def _end(self, ledger: OptimizerLedger) -> None:
        self.listener.ended(ledger)
        ledger.gradients.let_go()

    def name(self, ledger: OptimizerLedger) -> str:
        """Ledgers are named in the order in which gradients come to them; those that do nothing take no name."""
        if not ledger.name:
            self.names[ledger.kind] += 1
            number = self.names[ledger.kind]
            ledger.name = f"{ledger.kind} {number}" if number > 1 else ledger.kind
        return ledger.name

    # Between the events

    def look(self, values: bool = False) -> None:
        """Tells what has happened to the gradients since the last event. Inside a backward call this cannot be told.

        Args:
            values: Also read values: old code zeroes through `.data`, which raises no version.
        """
        if self.running is not None:
            if self.inside() is None:
                self.listener.overlapped()
            return
        self._end_dead_ledgers()
        alive = [ledger.gradients.parameters for ledger in self.by_hand]  # until this look has ended
        for ledger in self.by_hand:
            if ledger.unused and self.listener.wrote(ledger):
                self.step(ledger)
        for ledger in self.active:
            self._look_at(ledger, values)
        del alive

    def overlook(self) -> None:
        """What has been written to gradients since the last event is no change by the script."""
        if self.running is None:
            for ledger in self.active:
                ledger.gradients.compare()

    def _look_at(self, ledger: OptimizerLedger, values: bool = False) -> None:
        gradients, was_empty = ledger.gradients, ledger.gradients.empty
        written = gradients.compare()
        if not written and not (values and self._must_be_read(ledger)):
            return
        gradients.empty = gradients.without_gradients or gradients.all_zero()
        if not written and gradients.empty == was_empty:
            return
        gradients.unversioned |= not written
        if gradients.empty:
            self.listener.zeroed(ledger, ledger.zeroed())
            gradients.begin_again()
        else:
            assigned = was_empty or (gradients.put and not ledger.unused)
            gradients.came_as_zeros = False
            ledger.changed(replaced=assigned)
            self.listener.changed(ledger, assigned)

    @staticmethod
    def _must_be_read(ledger: OptimizerLedger) -> bool:
        """Whether something may have been written that raised no version: old code zeroes through `.data`."""
        gradients = ledger.gradients
        may_be_zeroed = ledger.in_grad and not gradients.came_as_zeros and (gradients.is_read or not ledger.unused)
        return gradients.empty or bool(may_be_zeroed)

    def _around_swap(self, *_, **__) -> Generator:
        """As in `model.to()`, for some parameters. PyTorch swaps no tensor that a weak reference refers to."""
        self.look()
        for ledger in self.active:
            ledger.gradients.seen = [None] * len(ledger.gradients.seen)
        yield
        self.overlook()

    def _around_zero_grad(self, optimizer: Optimizer, *args, **kwargs) -> Generator:
        yield
        self.look()
        ledger = self.ledger_of(optimizer) if self.inside() is not None else None
        if ledger is not None:  # an optimizer that steps and zeroes inside a backward call
            self._look_at(ledger)

    # Backward and step

    def inside(self) -> Call | None:
        """The backward call that this thread is in the middle of, or None."""
        thread = threading.current_thread()  # a dummy if it is one of autograd's own, which has one for each GPU
        own = thread.ident == self.thread or isinstance(thread, threading._DummyThread)
        return self.running if own else None

    def _around_backward(
        self, tensors=(), grad_tensors=None, retain_graph=None, create_graph=False, *args, **kwargs
    ) -> Generator:
        if self.inside() is not None:  # a checkpoint runs a backward inside the backward
            return
        self.look(values=True)
        for ledger in list(self.ledgers.values()):  # they may hold other parameters by now
            self._update(ledger)
        roots = [tensors] if isinstance(tensors, Tensor) else tensors_in(tensors)
        self.options = retain_graph, create_graph
        try:
            self.calls += 1
            call = self.listener.backward_begins(self.calls, roots, grad_tensors is not None)
            self.running, self.thread = call, threading.get_ident()
            yield
        finally:
            call, self.running = self.running, None
            for probe in self.probes:
                probe.remove()
            self.probes = []
            if call is not None and self.guard.failure is None:
                for ledger in self.active:
                    self._receive(ledger, call)
                self.listener.backward_ends(call)

    def _receive(self, ledger: OptimizerLedger, call: Call) -> None:
        """If the ledger's parameters have got gradients from this backward call, the ledger says so from now on."""
        gradients = ledger.gradients
        if not gradients.compare():
            return
        first = not ledger.in_grad
        gradients.filled += first
        gradients.came(first)
        if not ledger.calls_closure:  # whatever step was running has ended, perhaps by an exception
            ledger.depth = 0
        ledger.received(call)
        ledger.name or ledger.by_hand or self.name(ledger)
        self.listener.received(ledger, call)

    def _before_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        ledger = None if is_dynamo_compiling() else self.ledger_of(optimizer)
        if ledger is None:
            return
        call = self.inside()
        if call is not None:  # an optimizer that steps inside a backward call
            self._receive(ledger, call)
        self.look(values=True)
        ledger.depth += 1
        if ledger.depth > 1:
            return
        ledger.calls_closure = kwargs.get("closure", args[1] if len(args) > 1 else None) is not None
        if not ledger.calls_closure:
            found_inf = getattr(optimizer, "found_inf", None)  # set by a scaler while a fused optimizer steps
            self.step(ledger, skipped=found_inf is not None and bool(found_inf))

    def _after_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        ledger = None if is_dynamo_compiling() else self.ledgers.get(id(optimizer))  # known before the step
        if ledger is None:
            return
        ledger.depth = max(0, ledger.depth - 1)
        if ledger.calls_closure and not ledger.depth:
            self.look()
            self.step(ledger)
            ledger.calls_closure = False

    def step(self, ledger: OptimizerLedger, skipped: bool = False) -> None:
        gradients = ledger.gradients
        if gradients.came_as_zeros and not ledger.calls_closure:  # a step on zeros uses nothing
            ledger.found_zeros()
            gradients.begin_again()
        ledger.name or self.name(ledger)
        self.listener.stepped(ledger, ledger.stepped(skipped))
        if gradients.waits:  # what no step can reach counts with this window, not once more with the next
            ledger.forget()


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
