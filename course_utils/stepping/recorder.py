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

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from course_utils.record import TraceWriter, dense
from gradaudit.observe.ledger import Call, OptimizerLedger
from gradaudit.observe.observer import Observer, observing

LIMIT = 100  # moments before the last one
SMALL = 12  # a tensor with more numbers is shown by its norm


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
            hand), "step", "zero", "error" (the loop raised), "end" or "full" (there were more moments).
        line: The line of the loop's source that did it, from 1; 0 for none.
        lane: The name of the optimizer, if the event belongs to one.
        text: The loss, or what was raised.
        values: By the name of the parameter, its numbers and those of its `.grad`, as text.
        ledgers: By the name of the optimizer, which appears once gradients have come to it.
    """

    kind: str
    line: int
    lane: str
    text: str
    values: dict[str, tuple[str, str]]
    ledgers: dict[str, Ledger]


def record_steps(loop: Callable, *args: Any, **kwargs: Any) -> tuple[list[str], list[Moment]]:
    """Runs a training loop and records its moments. An error of the loop ends the record.

    Args:
        loop: A plain Python function.
        *args: What it is called with; its model, or the weights, must be among them.
        **kwargs: What it is called with.

    Returns:
        The lines of its source, and its moments in order.

    Raises:
        TypeError: If the loop is no such function, or cannot be called like this.
        ValueError: If its source is not available, or no weights are among the arguments.

    Example:
        >>> import torch
        >>> def train(w, batches, optimizer):
        ...     for x in batches:
        ...         (w * x).backward()
        ...         optimizer.step()
        >>> w = torch.tensor(1.0, requires_grad=True)
        >>> lines, moments = record_steps(train, w, [2.0, 3.0], torch.optim.SGD([w], lr=0.5))
        >>> [one.values["w"] for one in moments if one.kind == "backward"]
        [('1', '2'), ('0', '5')]
        >>> w.item()
        -2.5
    """
    if not isinstance(loop, FunctionType):
        raise TypeError(f"pass the loop itself, a function that is written with def; got {loop!r}")
    parameters = _parameters(inspect.signature(loop).bind(*args, **kwargs).arguments)
    if not parameters:
        raise ValueError(f"{loop.__name__} gets no weights; pass it its model, or the weights themselves")
    try:
        lines, first = inspect.getsourcelines(loop)
    except OSError:
        raise ValueError(f"{loop.__name__} has no source; write it with def, in a cell or a file") from None
    recorder = _Recorder(inspect.unwrap(loop).__code__, first, parameters)
    recorder.run(loop, args, kwargs)
    return textwrap.dedent("".join(lines)).rstrip().splitlines(), recorder.moments


class _Recorder(TraceWriter):
    """Listens to the observer, and to Python line by line, and writes moments."""

    who = "step_through()"

    def __init__(self, code: Any, first: int, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self.code, self.first, self.parameters = code, first, parameters
        self.moments: list[Moment] = []
        self.line = 1
        self.losses: dict[str, Tensor] = {}

    def run(self, loop: Callable, args: tuple, kwargs: dict) -> None:
        with observing(self):
            self.cut("start")
            before, kind, text = sys.gettrace(), "end", ""
            sys.settrace(lambda frame, *_: self.on_line if frame.f_code is self.code else None)
            try:
                loop(*args, **kwargs)
            except (Exception, SystemExit) as error:
                kind, text = "error", f"{type(error).__name__}: {error}".removesuffix(": ")
            finally:
                sys.settrace(before)
            if kind == "end":
                kind, self.line = "full" if len(self.moments) == LIMIT else "end", 0
            self.moments.append(self.moment(kind, text=text))

    def on_line(self, frame: FrameType, event: str, arg: Any) -> Callable:
        """A line of the loop has run if the next one begins, or if the loop returns."""
        if event in ("line", "return"):
            self.observer.look(values=True)
            losses = {name: value for name, value in frame.f_locals.items() if _is_loss(value)}
            for name, loss in losses.items():
                if self.losses.get(name) is not loss:
                    self.cut("loss", text=f"{name} = {shown(loss)}")
            self.losses = losses
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
        """Adds a moment, unless the record is full or a change shows in no number."""
        now = self.moment(kind, self.observer.name(ledger) if ledger else "", text)
        if len(self.moments) < LIMIT and (kind != "change" or now.values != self.moments[-1].values):
            self.moments.append(now)

    def moment(self, kind: str, lane: str = "", text: str = "") -> Moment:
        values = {name: (shown(p), shown(p.grad)) for name, p in self.parameters.items()}
        ledgers = {name: _ledger(ledger) for name, ledger in self.trace.ledgers.items()}
        return Moment(kind, self.line, lane, text, values, ledgers)


def _parameters(arguments: dict[str, Any]) -> dict[str, Tensor]:
    """The trainable tensors of modules, and loose ones, by their first names."""
    names: dict[Tensor, str] = {}
    for name, argument in arguments.items():
        own = argument.named_parameters(prefix=name) if isinstance(argument, nn.Module) else [(name, argument)]
        for key, value in own:
            if isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
                names.setdefault(value, key)
    return {name: p for p, name in names.items()}


def _is_loss(value: Any) -> bool:
    return isinstance(value, Tensor) and value.grad_fn is not None and value.numel() == 1


def _ledger(ledger: OptimizerLedger) -> Ledger:
    def numbers(calls: list[Call]) -> tuple[int, ...]:
        return tuple(call.number for call in calls)

    updates = tuple(numbers(update.calls) for update in ledger.updates if not update.skipped)
    lost = numbers([call for zeroing in ledger.lost for call in zeroing.calls if not call.read])
    return Ledger(numbers(ledger.in_grad), updates, lost)


def shown(tensor: Tensor | None) -> str:
    """The numbers of a tensor, or its norm if there are many."""
    if tensor is None:
        return "None"
    numbers = dense(tensor.detach()).double().flatten()
    if len(numbers) > SMALL:
        return f"norm {format_number(numbers.norm().item())}"
    return ", ".join(map(format_number, numbers.tolist()))


def format_number(value: float) -> str:
    """A number as text, with four digits.

    >>> [format_number(value) for value in (0.1 + 0.2, -0.0, 3, 12345.678, float("nan"))]
    ['0.3', '0', '3', '1.235e+04', 'NaN']
    """
    return f"{value + 0.0:.4g}".replace("nan", "NaN").replace("inf", "infinity")  # -0.0 + 0.0 is 0
