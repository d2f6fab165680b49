"""Records the moments of a training loop: losses, backward passes, changes, steps and zeroings.

The loop runs for real. Which of its lines runs is seen by Python's tracing of the loop's own code;
what happens to gradients, by the observer.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves

from course_utils.record import TraceWriter, dense
from gradaudit.observe.ledger import Call, OptimizerLedger
from gradaudit.observe.observer import Observer, observing

LIMIT = 100  # moments before the last one
SMALL = 12  # a tensor with more numbers is shown by its norm


class Values(NamedTuple):
    """A tensor at one moment: its numbers, or an empty tuple if there are many, and its norm."""

    numbers: tuple[float, ...]
    norm: float

    def __str__(self) -> str:
        return ", ".join(map(format_number, self.numbers)) or f"norm {format_number(self.norm)}"


class Ledger(NamedTuple):
    """One optimizer's ledger at one moment: micro-batches by the number of their call.

    Args:
        held: Micro-batches whose gradients are in `.grad`.
        updates: For each step, the micro-batches that it used.
        lost: Micro-batches whose gradients were zeroed before any step used them.
    """

    held: tuple[int, ...] = ()
    updates: tuple[tuple[int, ...], ...] = ()
    lost: tuple[int, ...] = ()

    @property
    def used(self) -> set[int]:
        """The micro-batches that a step has used."""
        return {number for update in self.updates for number in update}


class Moment(NamedTuple):
    """The state after one event of a loop.

    Args:
        kind: "start", "loss", "backward", "change" (of gradients by clipping, or of weights by
            hand), "step", "zero", "error" (the loop raised) or "end".
        line: The line of the loop's source that did it, from 1; 0 for none.
        lane: The name of the optimizer, if the event belongs to one.
        text: The loss, or what was raised.
        weights: By the name of the parameter.
        grads: The same for `.grad`, where None is not zeros.
        ledgers: By the name of the optimizer, which appears once gradients have come to it.
    """

    kind: str
    line: int
    lane: str
    text: str
    weights: dict[str, Values]
    grads: dict[str, Values | None]
    ledgers: dict[str, Ledger]


class Recording(NamedTuple):
    """What a loop did: its name, the lines of its source, and its moments in order."""

    name: str
    lines: list[str]
    moments: list[Moment]


def record_steps(loop: Callable, *args: Any, **kwargs: Any) -> Recording:
    """Runs a training loop and records its moments. An error of the loop ends the record.

    Args:
        loop: A plain Python function.
        *args: What it is called with; the model or the optimizer must be among them.
        **kwargs: What it is called with.

    Raises:
        TypeError: If the loop is no such function, or cannot be called like this.
        ValueError: If its source is not available, or no weights are among the arguments.

    Example:
        >>> def train(w, batches, optimizer):
        ...     for x in batches:
        ...         (w * x).backward()
        ...         optimizer.step()
        >>> w = torch.tensor(1.0, requires_grad=True)
        >>> recording = record_steps(train, w, [2.0, 3.0], torch.optim.SGD([w], lr=0.5))
        >>> [one.grads["w"].numbers for one in recording.moments if one.kind == "backward"]
        [(2.0,), (5.0,)]
        >>> w.item()
        -2.5
    """
    if not isinstance(loop, FunctionType):
        raise TypeError(f"pass the loop itself, a function that is written with def; got {loop!r}")
    parameters = _parameters(inspect.signature(loop).bind(*args, **kwargs).arguments)
    if not parameters:
        raise ValueError(f"{loop.__name__} gets no weights; pass its model and its optimizer")
    try:
        lines, first = inspect.getsourcelines(loop)
    except OSError:
        raise ValueError(
            f"the source of {loop.__name__} is not available; write it with def, in a cell or a file"
        ) from None
    recorder = _Recorder(inspect.unwrap(loop).__code__, first, parameters)
    recorder.run(loop, args, kwargs)
    return Recording(loop.__name__, textwrap.dedent("".join(lines)).rstrip().splitlines(), recorder.moments)


class _Recorder(TraceWriter):
    """Listens to the observer, and to Python line by line, and writes moments."""

    who = "step_through()"

    def __init__(self, code: Any, first: int, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self.code, self.first, self.parameters = code, first, parameters
        self.moments: list[Moment] = []
        self.line = 1
        self.losses: dict[str, ref] = {}

    def run(self, loop: Callable, args: tuple, kwargs: dict) -> None:
        with observing(self):
            self.cut("start")
            before, text = sys.gettrace(), ""
            sys.settrace(lambda frame, *_: self.on_line if frame.f_code is self.code else None)
            try:
                loop(*args, **kwargs)
            except (Exception, SystemExit) as error:
                text = f"{type(error).__name__}: {error}".removesuffix(": ")
            finally:
                sys.settrace(before)
            state = self.moment() if len(self.moments) < LIMIT else self.moments[-1]
            kind, line = ("error", self.line) if text else ("end", 0)
            self.moments.append(state._replace(kind=kind, line=line, text=text))

    def on_line(self, frame: FrameType, event: str, arg: Any) -> Callable:
        """A line of the loop has run if the next one begins, or if the loop returns."""
        if event in ("line", "return"):
            self.observer.look(values=True)
            for name, value in frame.f_locals.items():
                if _is_loss(value) and self.losses.get(name, lambda: None)() is not value:
                    self.losses[name] = ref(value)
                    self.cut("loss", text=f"{name} = {_values(value)}")
            if repr(self.moments[-1].weights) != repr(self.values()[0]):  # NaN is not itself, but it reads the same
                self.cut("change")
        if event == "line":
            self.line = frame.f_lineno - self.first + 1
        return self.on_line

    def attach(self, observer: Observer) -> None:
        super().attach(observer)
        self.watch(list(self.parameters.values()))
        observer.undo.callback(register_optimizer_step_post_hook(observer.guard(self.after_step)).remove)

    def after_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        ledger = self.observer.ledger_of(optimizer)
        if ledger and not ledger.depth and ledger.updates and not ledger.updates[-1].skipped:
            self.cut("step", ledger)

    def _add(self, kind: str, ledger: OptimizerLedger, norm: float) -> None:
        super()._add(kind, ledger, norm)
        if kind != "step":  # which is told before the weights move
            self.cut(kind, ledger)

    def cut(self, kind: str, ledger: OptimizerLedger | None = None, text: str = "") -> None:
        if len(self.moments) < LIMIT:
            lane = self.observer.name(ledger) if ledger else ""
            self.moments.append(self.moment()._replace(kind=kind, lane=lane, text=text))

    def moment(self) -> Moment:
        ledgers = {name: _ledger(ledger) for name, ledger in self.trace.ledgers.items()}
        return Moment("", self.line, "", "", *self.values(), ledgers)

    def values(self) -> tuple[dict[str, Values], dict[str, Values | None]]:
        """The weights and `.grad`."""
        weights = {name: _values(p) for name, p in self.parameters.items()}
        return weights, {name: None if p.grad is None else _values(p.grad) for name, p in self.parameters.items()}


def _parameters(arguments: dict[str, Any]) -> dict[str, Tensor]:
    """The trainable tensors of modules and optimizers, and loose ones, by their first names."""
    found: dict[str, Any] = {}
    for name, argument in arguments.items():
        leaves = tree_leaves(argument)
        for k, thing in enumerate(leaves):
            own = name if len(leaves) == 1 else f"{name}[{k}]"
            if isinstance(thing, nn.Module):
                found |= {f"{own}.{parameter}": p for parameter, p in thing.named_parameters()}
            elif isinstance(thing, Optimizer):
                held = [p for group in thing.param_groups for p in group["params"]]
                found |= {f"{own}[{number}]": p for number, p in enumerate(held)}
            elif isinstance(thing, Tensor):
                found[own] = thing
    names = {p: name for name, p in reversed(found.items()) if p.requires_grad and p.is_leaf}
    return {name: p for p, name in reversed(names.items())}


def _is_loss(value: Any) -> bool:
    return isinstance(value, Tensor) and value.grad_fn is not None and value.numel() == 1


def _ledger(ledger: OptimizerLedger) -> Ledger:
    def numbers(calls: list[Call]) -> tuple[int, ...]:
        return tuple(call.number for call in calls)

    updates = tuple(numbers(update.calls) for update in ledger.updates if not update.skipped)
    lost = numbers([call for zeroing in ledger.lost for call in zeroing.calls if not call.read])
    return Ledger(numbers(ledger.in_grad), updates, lost)


def _values(tensor: Tensor) -> Values:
    tensor = dense(tensor.detach())
    numbers = tuple(map(float, tensor.flatten().tolist())) if tensor.numel() <= SMALL else ()
    return Values(numbers, torch.linalg.vector_norm(tensor.double()).item())


def format_number(value: float) -> str:
    """A number as text, with four digits.

    >>> [format_number(value) for value in (0.1 + 0.2, -0.0, 3, 12345.678, float("nan"))]
    ['0.3', '0', '3', '1.235e+04', 'NaN']
    """
    return f"{value + 0.0:.4g}".replace("nan", "NaN").replace("inf", "infinity")  # -0.0 + 0.0 is 0
