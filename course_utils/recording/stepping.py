"""Records what each line of a loop did to the weights, `.grad` and the optimizer's state.

The loop runs for real. Lines are seen by Python's tracing of the loop's own code; what happens to
gradients, by the observer.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from course_utils.recording.trace import TraceWriter, dense
from gradaudit.observe.ledger import Call, Record, Update, Zeroing, last
from gradaudit.observe.observer import Observer, observing

LIMIT = 300  # frames of one record
SMALL = 12  # a tensor with more numbers is shown by its norm
_HEADERS = (ast.If, ast.For, ast.While)


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
        unused: Micro-batches of `held` that no step has used.
    """

    held: tuple[int, ...] = ()
    updates: tuple[tuple[int, ...], ...] = ()
    lost: tuple[int, ...] = ()
    unused: tuple[int, ...] = ()

    @classmethod
    def of(cls, record: Record) -> "Ledger":
        def numbers(calls: Iterable[Call]) -> tuple[int, ...]:
            return tuple(call.number for call in calls)

        return cls(
            numbers(record.in_grad),
            tuple(numbers(update.calls) for update in record.updates if not update.skipped),
            numbers(call for zeroing in record.lost for call in zeroing.calls if not call.read),
            numbers(last(record.unmade, record.in_grad)),
        )


@dataclass(frozen=True)
class Frame:
    """The state after one line, or after one event within it.

    Args:
        kind: "start", "line", "backward", "zero", "change", "step", "skipped" (a step that found an
            overflow), "error" (the loop raised), "cut" (the record is full) or "end".
        line: The line of the loop's source that did it, from 1; 0 for none.
        weights: By the name of the parameter.
        grads: The same for `.grad`, where None is not zeros.
        state: For each parameter what its optimizer holds, by name: "momentum_buffer", "exp_avg".
        optimizers: For each optimizer its name and settings, as text: a scheduler changes them.
        ledgers: By the name of the optimizer, which appears once gradients have come to it.
        variables: The loop's own variables, as short text.
        lane: The name of the optimizer, if the event belongs to one.
        taken: At the head of an `if` or a loop: whether its lines run next. None elsewhere.
        error: What was raised, with its type.
    """

    kind: str
    line: int
    weights: dict[str, Values]
    grads: dict[str, Values | None]
    state: dict[str, dict[str, Values]]
    optimizers: tuple[str, ...]
    ledgers: dict[str, Ledger]
    variables: dict[str, str] = field(default_factory=dict)
    lane: str = ""
    taken: bool | None = None
    error: str = ""


class Loop:
    """A function and its source.

    Args:
        function: A plain Python function.

    Raises:
        TypeError: If it is something else.
        ValueError: If its source is not available.
    """

    def __init__(self, function: Callable):
        if not isinstance(function, FunctionType):
            raise TypeError(f"pass the loop itself, a function that is written with def; got {function!r}")
        self.function, self.name = function, function.__name__
        self.code = inspect.unwrap(function).__code__
        try:
            lines, self.first = inspect.getsourcelines(function)  # its first line in the file
            source = textwrap.dedent("".join(lines)).rstrip()
            self.tree = ast.parse(source).body[0]
        except (OSError, SyntaxError, IndexError):
            self.tree = None
        if not isinstance(self.tree, ast.FunctionDef):
            raise ValueError(f"the source of {self.name} is not available; write it with def, in a cell or a file")
        self.lines = source.splitlines()

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement on a line of its source, from 1."""
        found = None
        for node in ast.walk(self.tree):  # outer statements come first
            if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno:
                found = node if found is None or node.lineno >= found.lineno else found
        return found


@dataclass
class Steps:
    """What a loop did, frame by frame.

    Args:
        loop: The loop and its source.
        frames: In order.
    """

    loop: Loop
    frames: list[Frame]


def record_steps(loop: Callable, *args: Any, limit: int = LIMIT, **kwargs: Any) -> Steps:
    """Runs a training loop and records each of its lines. An error of the loop ends the record.

    Args:
        loop: A plain Python function.
        *args: What it is called with; the model or the optimizer must be among them.
        limit: The most frames that are recorded; then the run is stopped.
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
        >>> steps = record_steps(train, w, [2.0, 3.0], torch.optim.SGD([w], lr=0.5))
        >>> [frame.grads["w"].numbers for frame in steps.frames if frame.kind == "backward"]
        [(2.0,), (5.0,)]
        >>> w.item()
        -2.5
    """
    loop = Loop(loop)
    parameters = _parameters(inspect.signature(loop.function).bind(*args, **kwargs).arguments)
    if not parameters:
        raise ValueError(f"{loop.name} gets no weights; pass its model and its optimizer")
    recorder = _Recorder(loop, parameters, limit)
    recorder.run(args, kwargs)
    return Steps(loop, recorder.frames)


class _Full(BaseException):
    """The end of a full record; no `Exception`, which the loop itself might catch."""


@dataclass
class _Line:
    """A running statement of the loop, and whether it is `shown` by a frame."""

    number: int = 1
    statement: ast.stmt | None = None
    shown: bool = False


class _Recorder(TraceWriter):
    """Listens to the observer, and to Python's line by line, and writes frames."""

    who = "step_through()"

    def __init__(self, loop: Loop, parameters: dict[str, Tensor], limit: int):
        super().__init__()
        self.loop, self.parameters, self.limit = loop, parameters, limit
        self.frames: list[Frame] = []
        self.here = _Line()
        self.variables: dict[str, str] = {}
        self.stepping: Update | None = None  # a step that has begun
        self.recording = False

    def run(self, args: tuple, kwargs: dict) -> None:
        with observing(self):
            self.cut("start")
            before, self.recording = sys.gettrace(), True
            sys.settrace(self.on_call)
            try:
                self.loop.function(*args, **kwargs)
                sys.settrace(before)
                self.observer.look(values=True)
                self.cut("end", line=0)
            except _Full:
                self.cut("cut")
            except (Exception, SystemExit) as error:
                self.cut("error", error=f"{type(error).__name__}: {error}".strip().removesuffix(":"))
            finally:
                sys.settrace(before)
                self.recording = False

    # Python's own events

    def on_call(self, frame: FrameType, event: str, arg: Any) -> Callable | None:
        return self.on_line if self.recording and frame.f_code is self.loop.code else None

    def on_line(self, frame: FrameType, event: str, arg: Any) -> Callable | None:
        if event == "exception" and arg[0] is not StopIteration:  # which only ends a loop
            self.here.statement = None  # it has not run to its end
        if event == "exception" or not self.recording:
            return self.on_line
        number = frame.f_lineno - self.loop.first + 1 if event == "line" else 0
        statement = self.loop.statement(number)
        if statement is not self.here.statement:
            self.finish(frame, self.here, number)
            self.here = _Line(min(number, statement.lineno) if statement else self.here.number, statement)
        return self.on_line

    def finish(self, frame: FrameType, here: _Line, following: int) -> None:
        """A line has run. `following`: the line that runs next, or 0."""
        if here.statement is None:
            return
        self.observer.look(values=True)
        given = inspect.getargs(frame.f_code).args
        shown = {name: _short(value) for name, value in frame.f_locals.items() if name not in given}
        self.variables = {name: text for name, text in shown.items() if text and name.isidentifier()}
        body = here.statement.body if isinstance(here.statement, _HEADERS) else []
        taken = body[0].lineno <= following <= body[-1].end_lineno if body else None
        if not here.shown:
            self.cut("line", taken=taken)

    # What the observer tells

    def attach(self, observer: Observer) -> None:
        super().attach(observer)
        self.watch(list(self.parameters.values()))
        observer.undo.callback(register_optimizer_step_post_hook(observer.guard(self.after_step)).remove)

    def received(self, record: Record, call: Call) -> None:
        super().received(record, call)
        self.cut("backward", record)

    def zeroed(self, record: Record, zeroing: Zeroing) -> None:
        super().zeroed(record, zeroing)
        self.cut("zero", record)

    def changed(self, record: Record, assigned: bool) -> None:
        super().changed(record, assigned)
        self.cut("change", record)

    def stepped(self, record: Record, update: Update) -> None:
        super().stepped(record, update)
        self.stepping = update

    def after_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        update = self.stepping
        if update is not None and update.record.optimizer() is optimizer:
            self.stepping = None
            self.cut("skipped" if update.skipped else "step", update.record)

    # Frames

    def cut(self, kind: str, record: Record | None = None, line: int | None = None, **more: Any) -> None:
        if kind not in ("start", "cut", "error", "end"):
            if not self.recording:
                return
            if len(self.frames) >= self.limit:
                raise _Full
        self.here.shown = True
        line = self.here.number if line is None else line
        lane = self.observer.name(record) if record is not None else ""
        self.frames.append(Frame(kind, line, *self.snapshot(), self.variables, lane, **more))

    def snapshot(self) -> tuple[dict, dict, dict, tuple[str, ...], dict]:
        weights = {name: _values(p) for name, p in self.parameters.items()}
        grads = {name: None if p.grad is None else _values(p.grad) for name, p in self.parameters.items()}
        own = {id(p) for p in self.parameters.values()}
        found = [record.optimizer() for record in self.observer.active if not own.isdisjoint(record.gradients.ids)]
        optimizers, state = [optimizer for optimizer in found if optimizer is not None], {}
        for name, p in self.parameters.items():
            entries = next((optimizer.state[p] for optimizer in optimizers if p in optimizer.state), {})
            if tensors := {key: _values(value) for key, value in entries.items() if isinstance(value, Tensor)}:
                state[name] = tensors
        ledgers = {name: Ledger.of(record) for name, record in self.trace.records.items()}
        return weights, grads, state, tuple(map(_described, optimizers)), ledgers


# What the loop is called with


def _parameters(things: Any) -> dict[str, Tensor]:
    """The trainable tensors of modules and optimizers, and loose ones, by name."""
    found: dict[str, Tensor] = {}
    optimizers_last = sorted(_all(things), key=lambda pair: isinstance(pair[1], Optimizer))
    seen, several = set(), sum(isinstance(thing, nn.Module) for _, thing in optimizers_last) > 1
    for name, thing in optimizers_last:
        some: Iterable[tuple[str, Any]] = [(name, thing)]
        if isinstance(thing, nn.Module):
            some = ((f"{name}.{own}" if several else own, p) for own, p in thing.named_parameters())
        elif isinstance(thing, Optimizer):
            some = (("", p) for group in thing.param_groups for p in group["params"])
        for own, p in some:
            if isinstance(p, Tensor) and p.requires_grad and p.is_leaf and id(p) not in seen:
                seen.add(id(p))
                found[own if own and own not in found else f"parameter {len(found) + 1}"] = p
    return found


def _all(things: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The things, and the items of lists, tuples and dicts among them, each with its name."""
    if isinstance(things, dict):
        for key, thing in things.items():
            yield from _all(thing, key if isinstance(key, str) else name)
    elif isinstance(things, (list, tuple)):
        for thing in things:
            yield from _all(thing, name)
    else:
        yield name, things


# Values


def _values(tensor: Tensor) -> Values:
    tensor = dense(tensor.detach())
    numbers = tuple(map(float, tensor.flatten().tolist())) if tensor.numel() <= SMALL else ()
    return Values(numbers, torch.linalg.vector_norm(tensor.double()).item())


def _short(value: Any) -> str | None:
    """A variable as short text; None if it says nothing in short."""
    if isinstance(value, Tensor) and value.numel() <= 4 and value.dim() < 2:
        value = value.tolist()
    if isinstance(value, (bool, type(None))) or (isinstance(value, str) and len(value) <= 20):
        return repr(value)
    if isinstance(value, (int, float)):
        return format_number(value)
    if isinstance(value, (list, tuple)) and len(value) <= 4 and all(isinstance(one, (int, float)) for one in value):
        return f"[{', '.join(map(format_number, value))}]"
    return f"list of {len(value)}" if isinstance(value, list) else None


def format_number(value: float) -> str:
    """A number as text, with four digits.

    >>> [format_number(value) for value in (0.1 + 0.2, -0.0, 3, 12345.678, float("nan"))]
    ['0.3', '0', '3', '1.235e+04', 'NaN']
    """
    if isinstance(value, int):
        return str(value)
    return f"{value + 0.0:.4g}".replace("nan", "NaN").replace("inf", "infinity")  # -0.0 + 0.0 is 0


def _described(optimizer: Optimizer) -> str:
    """An optimizer's name and the settings that are not zero: "SGD, lr 0.1, momentum 0.9"."""
    group = optimizer.param_groups[0]
    wanted = [key for key in ("lr", "momentum", "betas", "weight_decay") if group.get(key)]
    return ", ".join([type(optimizer).__name__, *(f"{key} {_short(group[key])}" for key in wanted)])
