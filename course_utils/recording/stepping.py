"""Records a training loop line by line: what each line did to the weights, to `.grad` and to the optimizer's state.

The loop runs for real, on copies, so that the learner's model, optimizer, data and random numbers stay as they were.
Lines are seen by Python's tracing of the loop's own code; what happens to gradients, by the observer.
"""

import ast
import copy
import dis
import inspect
import io
import random
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple
from warnings import catch_warnings, filterwarnings

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from course_utils.recording.trace import Trace, TraceWriter, used_by_steps
from gradaudit.observe.gradients import local
from gradaudit.observe.ledger import Call, Record, Update, Zeroing
from gradaudit.observe.observer import Observer, observing

LIMIT = 300  # frames of one record
SMALL = 12  # a tensor with more numbers is shown by its norm
_EXPRESSIONS = {"<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}  # parts of a line
_HEADERS = (ast.If, ast.For, ast.While)


class Values(NamedTuple):
    """A tensor at one moment: its numbers if it is small (otherwise an empty tuple), its norm and how many it has."""

    numbers: tuple[float, ...]
    norm: float
    size: int


class Ledger(NamedTuple):
    """Micro-batches of one lane, by number. A micro-batch is a call to backward() that brought gradients to the lane.

    Args:
        held: Those whose gradients are in `.grad`.
        updates: For each step, those that it used.
        lost: Those whose gradients were zeroed before any step used them.
        unused: Those of `held` that no step has used.
    """

    held: tuple[int, ...] = ()
    updates: tuple[tuple[int, ...], ...] = ()
    lost: tuple[int, ...] = ()
    unused: tuple[int, ...] = ()

    @classmethod
    def of(cls, record: Record, numbers: dict[Call, int]) -> "Ledger":
        """What a record says now, in the numbers that its calls have here."""
        used, held = used_by_steps(record), set(record.in_grad)
        nothing = {call for update in (*record.updates, record.open) for call in update.zeros}  # nobody zeroed them
        return cls(
            tuple(numbers[call] for call in record.in_grad),
            tuple(tuple(numbers[call] for call in update.calls) for update in record.updates if not update.skipped),
            tuple(number for call, number in numbers.items() if call not in used | held | nothing and not call.read),
            tuple(numbers[call] for call in record.in_grad if call not in used),
        )


@dataclass(frozen=True)
class Frame:
    """The state after one line, or after one event within it.

    Args:
        kind: "start", "line", "forward", "backward", "zero", "change", "step", "skipped" (a step that found an
            overflow), "error" (the loop raised), "cut" (the record is full) or "end".
        line: The line of the loop's source that did it, from 1; 0 for none.
        weights: By the name of the parameter.
        grads: The same for `.grad`, where None is not zeros.
        state: For each parameter what its optimizer holds, by name: "momentum_buffer", "exp_avg".
        optimizers: For each optimizer its name and settings, as text: a scheduler changes them.
        ledgers: By the name of the lane; an optimizer appears once gradients have come to it.
        lane: Of the event.
        taken: At the head of an `if` or a loop: whether its lines run next. None elsewhere.
        loss: What backward() was called on, if it is one number.
        variables: The loop's own variables, as short text.
        printed: What this line printed.
        error: What was raised, with its type.
    """

    kind: str
    line: int
    weights: dict[str, Values]
    grads: dict[str, Values | None]
    state: dict[str, dict[str, Values]]
    optimizers: tuple[str, ...]
    ledgers: dict[str, Ledger]
    lane: str = ""
    taken: bool | None = None
    loss: float | None = None
    variables: dict[str, str] = field(default_factory=dict)
    printed: str = ""
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
        if not isinstance(function, FunctionType) or inspect.isgeneratorfunction(function):
            raise TypeError(f"pass the loop itself, a function that is written with def; got {function!r}")
        self.function = function
        self.name = function.__name__
        self.code = inspect.unwrap(function).__code__
        try:
            lines, first = inspect.getsourcelines(function)
            source = textwrap.dedent("".join(lines))
            self.tree = ast.parse(source).body[0]
        except (OSError, SyntaxError, IndexError) as problem:
            raise ValueError(f"the source of {self.name} is not available; write it in a cell or a file") from problem
        if not isinstance(self.tree, ast.FunctionDef):
            if self.code.co_name != "<lambda>":  # Python 3.13 takes other lines for those of a string that was run
                raise ValueError(f"the source of {self.name} is not available; write it in a cell or a file")
            raise TypeError(f"pass the loop itself, a function that is written with def; got {function!r}")
        self.lines = source.rstrip().splitlines()
        self.first = first  # the number of its first line in the file
        self.plain = not self.tree.decorator_list and not hasattr(function, "__wrapped__")

    @classmethod
    def changed(cls, loop: "Loop", lines: list[str]) -> "Loop":
        """The same function with other lines, and with the same variables from outside."""
        made = cls.__new__(cls)
        made.name, made.lines, made.first, made.plain = loop.name, lines, 1, True
        made.tree = ast.parse("\n".join(lines)).body[0]
        old = loop.function
        maker = ast.parse(f"def maker({', '.join(old.__code__.co_freevars)}): pass")
        maker.body[0].body = [made.tree]
        module = compile(maker, f"<{loop.name}, changed>", "exec")
        code = next(c for c in _codes(module) if c.co_name == loop.name and c.co_firstlineno == made.tree.lineno)
        cells = dict(zip(old.__code__.co_freevars, old.__closure__ or (), strict=True))
        closure = tuple(cells[name] for name in code.co_freevars)
        made.function = FunctionType(code, old.__globals__, loop.name, old.__defaults__, closure)
        made.function.__kwdefaults__ = old.__kwdefaults__
        made.code = code
        return made

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
        trace: The same run as `record()` sees it: `steps.trace.windows()`.
        rank: On which of several ranks, whose backward passes may also bring what the other ranks have.
    """

    loop: Loop
    frames: list[Frame]
    trace: Trace
    rank: int | None = None

    def __repr__(self) -> str:
        return f"<Steps of {self.loop.name}: {len(self.frames)} frames>"


class Scene:
    """The arguments of a loop and the state of the random numbers, as they are when this is made.

    Each run gets copies of its own.

    Args:
        loop: The loop.
        args: What it is called with.
        kwargs: What it is called with.

    Raises:
        TypeError: If the loop cannot be called like this, or the arguments cannot be copied.
        ValueError: If no weights are among the arguments, or the loop uses a model from elsewhere.
    """

    def __init__(self, loop: Loop, args: tuple, kwargs: dict):
        try:
            arguments = inspect.signature(loop.function).bind(*args, **kwargs).arguments
        except TypeError as problem:
            raise TypeError(f"{loop.name}: {problem}; pass what you would call {loop.name} with") from None
        if not _parameters(arguments):
            raise ValueError(f"{loop.name} gets no weights; pass its model and its optimizer")
        self.check(loop, args, kwargs)
        self.args, self.kwargs, _ = _copied((args, kwargs, arguments))
        self.random = _random_state()

    @staticmethod
    def check(loop: Loop, args: tuple, kwargs: dict) -> None:
        """A model from outside of the arguments would not be a copy: the run would train the learner's own."""
        for function in (loop.function, *args, *kwargs.values()):
            for name, value in _from_outside(function, set()):
                if _parameters(value):
                    raise ValueError(
                        f"{getattr(function, '__name__', 'a function')} uses {name} from outside its arguments. The "
                        f"loop runs on copies of its arguments: pass {name} to it as well"
                    )

    def record(self, loop: Loop, limit: int = LIMIT) -> Steps:
        """Runs the loop on copies and records it. An error of the loop ends the record."""
        args, kwargs, arguments = _copied((self.args, self.kwargs, {}))
        arguments = inspect.signature(loop.function).bind(*args, **kwargs).arguments
        recorder = _Recorder(loop, _parameters(arguments), limit)
        with _random_numbers(self.random):
            recorder.run(args, kwargs)
        return Steps(loop, recorder.frames, recorder.trace)


def record_steps(loop: Callable, *args: Any, limit: int = LIMIT, **kwargs: Any) -> Steps:
    """Runs a training loop on copies of its arguments, and records what each of its lines does.

    Args:
        loop: A plain Python function.
        *args: What it is called with; the model and the optimizer must be among them.
        limit: The most frames that are recorded; then the run is stopped.
        **kwargs: What it is called with.

    Returns:
        The `Steps`.

    Raises:
        TypeError: If the loop is no such function, cannot be called like this, or an argument cannot be copied.
        ValueError: If its source is not available, no weights are passed, or it uses a model from elsewhere.

    Example:
        >>> def train(w, batches, optimizer):
        ...     for x in batches:
        ...         (w * x).backward()
        ...         optimizer.step()
        >>> w = torch.tensor(1.0, requires_grad=True)
        >>> steps = record_steps(train, w, [2.0, 3.0], torch.optim.SGD([w], lr=0.5))
        >>> [frame.grads["w"].numbers for frame in steps.frames if frame.kind == "backward"], w.grad
        ([(2.0,), (5.0,)], None)
    """
    loop = Loop(loop)
    return Scene(loop, args, kwargs).record(loop, limit)


class _Full(BaseException):
    """The record is full. No `Exception`, so that `except Exception` in the loop does not catch it."""


class _Line:
    """A statement of the loop that is running."""

    def __init__(self, frame: FrameType):
        self.frame = frame
        self.number = 0
        self.statement: ast.stmt | None = None
        self.shown = False  # has it a frame already?
        self.forward = False  # has a forward pass run in it that has no frame yet?
        self.raised = ""


class _Recorder(TraceWriter):
    """Listens to the observer, and to Python's line by line, and writes frames."""

    who = "step_through()"

    def __init__(self, loop: Loop, parameters: dict[str, Tensor], limit: int):
        super().__init__()
        self.loop, self.parameters, self.limit = loop, parameters, limit
        self.frames: list[Frame] = []
        self.codes = {code for code in _codes(loop.code) if code.co_name not in _EXPRESSIONS}
        self.optimizers: dict[int, Optimizer] = {}
        self.numbers: dict[Record, dict[Call, int]] = {}  # of the calls that brought gradients to it
        self.ledgers: dict[str, Ledger] = {}
        self.lines: list[_Line] = []  # the running function's line, and above it those of functions inside it
        self.variables: dict[str, str] = {}
        self.loss: float | None = None
        self.stepping: Update | None = None  # a step that has begun
        self.printed = io.StringIO()
        self.recording = False

    # The run

    def run(self, args: tuple, kwargs: dict) -> None:
        # A copied scheduler does not know that its optimizer's step is counted, and would warn.
        with observing(self), redirect_stdout(self.printed), catch_warnings():
            filterwarnings("ignore", "Seems like `optimizer.step")
            self.cut("start", line=1)
            self.recording = True
            before = sys.gettrace()
            sys.settrace(self.on_call)
            try:
                self.loop.function(*args, **kwargs)
            except _Full:
                self.recording = False
                self.cut("cut")
            except (Exception, SystemExit) as error:
                sys.settrace(before)
                self.failed(error)
            else:
                sys.settrace(before)
                self.observer.look(values=True)
                self.recording = False
                self.cut("end", line=0)
            finally:
                sys.settrace(before)
                self.recording = False

    def failed(self, error: BaseException) -> None:
        self.recording = False
        traceback, line = error.__traceback__, 1
        while traceback is not None:
            if traceback.tb_frame.f_code in self.codes:
                line = self.number(traceback.tb_lineno)
            traceback = traceback.tb_next
        self.cut("error", line=line, error=f"{type(error).__name__}: {error}".strip().removesuffix(":"))

    def number(self, line: int) -> int:
        return line - self.loop.first + 1

    # Python's own events

    def on_call(self, frame: FrameType, event: str, arg: Any) -> Callable | None:
        if not self.recording or frame.f_code not in self.codes:
            return None
        self.lines.append(_Line(frame))
        return self.on_line

    def on_line(self, frame: FrameType, event: str, arg: Any) -> Callable:
        if not self.recording or not self.lines or self.lines[-1].frame is not frame:
            return self.on_line
        here = self.lines[-1]
        if event == "line":
            number = self.number(frame.f_lineno)
            statement = self.loop.statement(number)
            if statement is not here.statement:
                self.finish(here, number)
                here.statement = statement
                here.number = min(number, getattr(statement, "lineno", number))
                here.shown, here.forward, here.raised = False, False, ""
        elif event == "exception" and arg[0] is not StopIteration:  # which only ends a loop
            here.raised = arg[0].__name__
        elif event == "return":
            if not here.raised:
                self.finish(here, 0)
            self.lines.pop()
        return self.on_line

    def finish(self, here: _Line, following: int) -> None:
        """A line has run. `following`: the line that runs next in the same function, or 0."""
        if here.statement is None:
            return
        self.observer.look(values=True)
        if frame_variables := self.own_variables():
            self.variables = frame_variables
        taken = None
        if isinstance(here.statement, _HEADERS):
            body = here.statement.body
            taken = body[0].lineno <= following <= body[-1].end_lineno
        if here.forward:
            self.cut("forward")
        elif not here.shown:
            error = f"{here.raised}, which the loop catches" if here.raised else ""
            self.cut("line", taken=taken, error=error)

    def own_variables(self) -> dict[str, str]:
        frame = self.lines[0].frame
        code = frame.f_code
        given = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        values = {name: _short(value) for name, value in frame.f_locals.items() if name not in given}
        return {name: text for name, text in values.items() if text is not None and name.isidentifier()}

    # What the observer tells

    def attach(self, observer: Observer) -> None:
        super().attach(observer)
        self.watch(list(self.parameters.values()))
        observer.undo.callback(register_optimizer_step_post_hook(observer.guard(self.after_step)).remove)

    def forward(self, records: list[Record]) -> None:
        super().forward(records)
        if self.lines:
            self.lines[-1].forward = True

    def backward_begins(self, number: int, roots: list[Tensor], given: bool) -> Call:
        one = len(roots) == 1 and roots[0].numel() == 1 and not given
        self.loss = roots[0].item() if one else None
        if self.lines and self.lines[-1].forward:
            self.cut("forward", loss=self.loss)
        return super().backward_begins(number, roots, given)

    def received(self, record: Record, call: Call) -> None:
        super().received(record, call)
        numbers = self.numbers.setdefault(record, {})
        numbers[call] = len(numbers) + 1
        self.book(record)
        self.cut("backward", record, loss=self.loss)

    def zeroed(self, record: Record, zeroing: Zeroing) -> None:
        super().zeroed(record, zeroing)
        self.book(record)
        self.cut("zero", record)

    def changed(self, record: Record, assigned: bool) -> None:
        super().changed(record, assigned)
        self.book(record)
        self.cut("change", record)

    def stepped(self, record: Record, update: Update) -> None:
        super().stepped(record, update)
        self.stepping = update

    def after_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        update = self.stepping
        if update is not None and update.record.optimizer() is optimizer:
            self.stepping = None
            self.book(update.record)
            self.cut("skipped" if update.skipped else "step", update.record)

    def book(self, record: Record) -> None:
        self.ledgers[self.observer.name(record)] = Ledger.of(record, self.numbers.get(record, {}))

    # Frames

    def cut(self, kind: str, record: Record | None = None, line: int | None = None, **more: Any) -> None:
        if kind not in ("start", "cut", "error", "end"):
            if not self.recording:
                return
            if len(self.frames) >= self.limit:
                raise _Full
        if self.lines:
            self.lines[-1].shown, self.lines[-1].forward = True, False
        if line is None:
            line = self.lines[-1].number if self.lines else 1
        if record is not None:
            more["lane"] = record.name
        printed = self.printed.getvalue()
        self.printed.seek(0)
        self.printed.truncate()
        self.frames.append(
            Frame(
                kind, line, *self.snapshot(), dict(self.ledgers), variables=self.variables, printed=printed, **more
            )
        )  # fmt: skip

    def snapshot(self) -> tuple[dict, dict, dict, tuple[str, ...]]:
        for record in self.observer.active:  # parameters and optimizers that the loop has made
            optimizer, own = record.optimizer(), record.gradients.parameters
            if optimizer is not None and any(p is q for p in own for q in self.parameters.values()):
                self.optimizers[id(optimizer)] = optimizer
        weights = {name: _values(p) for name, p in self.parameters.items()}
        grads = {name: None if p.grad is None else _values(p.grad) for name, p in self.parameters.items()}
        state = {}
        for name, p in self.parameters.items():
            entries = next((o.state[p] for o in self.optimizers.values() if p in o.state), {})
            found = {key: _values(value) for key, value in entries.items() if isinstance(value, Tensor)}
            if found:
                state[name] = found
        return weights, grads, state, tuple(map(_described, self.optimizers.values()))


# Copies


def _copied(things: Any) -> Any:
    """A deep copy in which parameters keep their `.grad`."""
    memo: dict[int, Any] = {}
    try:
        copies = copy.deepcopy(things, memo)
    except Exception as problem:
        raise TypeError(
            f"the loop runs on copies of its arguments, and one of them cannot be copied ({problem}); "
            "pass a list of micro-batches, not a generator"
        ) from problem
    for p in _parameters(things).values():
        if p.grad is not None:  # deepcopy leaves it out for an nn.Parameter
            memo[id(p)].grad = p.grad.detach().clone()
    for optimizer in _optimizers(things):  # and it copies of an optimizer only what all optimizers have
        made = memo[id(optimizer)]
        for name, value in vars(optimizer).items():
            if name not in vars(made) and not callable(value) and "hook" not in name:
                setattr(made, name, copy.deepcopy(value, memo))
    return copies


def _parameters(things: Any) -> dict[str, Tensor]:
    """The tensors among these things that can be trained, by name: those of modules, of optimizers, and loose ones."""
    found: dict[int, tuple[str, Tensor]] = {}
    modules = sum(isinstance(thing, nn.Module) for _, thing in _all(things))
    for name, thing in _all(things):
        if isinstance(thing, nn.Module):
            for own, p in thing.named_parameters():
                if p.requires_grad:
                    found.setdefault(id(p), (f"{name}.{own}" if modules > 1 and name else own, p))
        elif isinstance(thing, Tensor) and thing.requires_grad and thing.is_leaf:
            found.setdefault(id(thing), (name, thing))
    for optimizer in _optimizers(things):
        for group in optimizer.param_groups:
            for p in group["params"]:
                found.setdefault(id(p), (f"parameter {len(found) + 1}", p))
    named: dict[str, Tensor] = {}
    for name, p in found.values():
        named[name if name and name not in named else f"parameter {len(named) + 1}"] = p
    return named


def _optimizers(things: Any) -> list[Optimizer]:
    return [thing for _, thing in _all(things) if isinstance(thing, Optimizer)]


def _all(things: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The things themselves, and what lists, tuples and dicts among them hold, with the names that they have there."""
    if isinstance(things, dict):
        for key, thing in things.items():
            yield from _all(thing, key if isinstance(key, str) else name)
    elif isinstance(things, (list, tuple)):
        for thing in things:
            yield from _all(thing, name)
    else:
        yield name, things


def _from_outside(function: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """What a function, and those of the same module that it calls, read from outside: names and values."""
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not yet set
            continue
    for code in _codes(function.__code__):
        for name in {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}:
            value = function.__globals__.get(name)
            yield name, value
            if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
                yield from _from_outside(value, seen)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


# Random numbers


def _random_state() -> dict[str, Any]:
    state = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
    if "numpy" in state:
        sys.modules["numpy"].random.set_state(state["numpy"])


@contextmanager
def _random_numbers(state: dict[str, Any]) -> Iterator[None]:
    """In the block, random numbers go on from this state; after it, from where they were before."""
    before = _random_state()
    _set_random_state(state)
    try:
        yield
    finally:
        _set_random_state(before)


# Values


def _values(tensor: Tensor) -> Values:
    tensor = local(tensor).detach()
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    size = tensor.numel()
    numbers = tuple(map(float, tensor.flatten().tolist())) if size <= SMALL else ()
    norm = torch.linalg.vector_norm(tensor.double() if tensor.dtype.is_floating_point else tensor.to(torch.float64))
    return Values(numbers, norm.item(), size)


def _short(value: Any) -> str | None:
    """A variable as short text; None if it says nothing in short."""
    if isinstance(value, Tensor):
        if value.numel() > 4 or value.dim() > 1 or value.is_complex():
            return None
        value = value.detach().tolist()
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, (list, tuple)):
        if len(value) <= 4 and all(isinstance(one, (int, float)) for one in value):
            return f"[{', '.join(map(number, value))}]"
        return f"list of {len(value)}" if isinstance(value, list) else None
    return repr(value) if isinstance(value, str) and len(value) <= 20 else None


def number(value: float, digits: int = 4) -> str:
    """A number as it is shown: with four digits, or with as many as are asked for.

    >>> number(0.1 + 0.2), number(-0.0), number(3), number(12345.678), number(float("nan"))
    ('0.3', '0', '3', '1.235e+04', 'NaN')
    """
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "infinity" if value > 0 else "-infinity"
    if isinstance(value, int):
        return str(value)
    text = f"{value:.{digits}g}"
    return "0" if text == "-0" else text


def _described(optimizer: Optimizer) -> str:
    """An optimizer's name and the settings that are not zero: "SGD, lr 0.1, momentum 0.9"."""
    group = optimizer.param_groups[0]
    wanted = [key for key in ("lr", "momentum", "betas", "weight_decay") if group.get(key)]
    return ", ".join([type(optimizer).__name__, *(f"{key} {_short(group[key])}" for key in wanted)])


def numbers_of(values: Iterable[Values]) -> int:
    """How many numbers there are in all."""
    return sum(one.size for one in values)
