"""The exercise of *what else saves memory*: a window that survives running out of memory."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from numbers import Integral
from traceback import extract_tb

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_utils.memory import SavedBytes, saved_bytes
from course_utils.models import mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, changed, close, rounded
from course_utils.practice.updates import (
    ROUNDED,
    judge_model,
    large_batches,
    random_batches,
    recorded_tally,
    sgd,
    squared_error,
)


class Stopped(BaseException):
    """The card has found a mistake. No `Exception`, so that an answer that catches too much does not catch it."""


class Activations:
    """Stands for what a forward pass that failed had already put on the card: its error's traceback holds it."""


@dataclass
class Card:
    """A loss that raises where a micro-batch is larger than what fits, and sees what is still held at each call."""

    fits: float
    later: float = inf  # how many samples fit from the third call on
    mean_loss: Callable[[nn.Module, Tensor], Tensor] = lambda model, batch: model(batch).mean()
    error: Exception = field(default_factory=lambda: torch.OutOfMemoryError("out of memory (simulated)"))
    calls: int = 0
    failed: list[weakref.ref] = field(default_factory=list)  # to what the failed forward passes held
    saved: SavedBytes = field(default_factory=SavedBytes)  # by the graphs of the others
    mistake: Mistake | None = None

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """The answer runs in this block; what the card has found comes out, whatever the answer did with it."""
        with saved_bytes(model) as self.saved:
            try:
                yield
            except (Exception, Stopped):
                if not self.mistake:
                    raise
        if self.mistake:
            raise self.mistake

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        self.calls += 1
        self._look(len(batch))
        if len(batch) > min(self.fits, self.later if self.calls > 2 else inf):
            held = Activations()
            self.failed.append(weakref.ref(held))
            raise type(self.error)(*self.error.args)
        return self.mean_loss(model, batch)

    def _look(self, samples: int) -> None:
        went = f"a micro-batch of {samples} went forward while"
        if self.calls > 500:
            hint = "what happens when not even one sample fits?"
            self.mistake = Mistake("endless", f"more than 500 forward passes for one update: {hint}")
        elif any(ref() is not None for ref in self.failed):
            hint = (
                "its traceback holds the activations of that forward pass, and a real card has no more room than before"
            )
            self.mistake = Mistake("kept-activations", f"{went} the error of one that failed was still there: {hint}.")
        elif self.saved.now:
            hint = "together they need as much memory as one large batch"
            self.mistake = Mistake("held-graphs", f"{went} the graph of an earlier one was still held: {hint}.")
        if self.mistake:
            raise Stopped


@exercise(
    "survive",
    hints={
        "stale-gradients": "What is in `.grad` when you begin the window again, and what when you return?",
        "discarded-gradients": "With which sample does the next attempt begin? And does zeroing run between parts?",
        "token-weights": "The last part may be shorter. What is each part's share of all items, whatever the size is "
        "by now?",
        "loss-scale": "Add the factors of all parts of one window. What is their sum, whatever the size is by now?",
        "leftover-gradients": "Does your function reach `optimizer.step()` whatever size fits?",
        "irregular-window": "All parts belong to one update. Is `step()` reached more than once, perhaps by recursion?",
        "endless": "Half of one is none. Where do you stop?",
        "held-graphs": "When does each part get its `backward()`: before the next forward pass, or after all of them? "
        "And what keeps a graph that `backward()` would have freed?",
        "kept-activations": "Where does the next attempt begin: inside the `except` or after it? And does a variable "
        "still hold the error?",
        "catches-too-much": "Which class do you catch? A bug in the model must come out as it is.",
        "not-caught": "Which error does PyTorch raise when memory runs out, which do you catch, and is every forward "
        "pass inside the `try`?",
        "swallowed-error": "Follow your loop when even size 1 fails. Which line tells the caller?",
        "wrong-error": "The caller waits for the out-of-memory error. Which statement lets the one you caught go on?",
        "wrong-size": "Print the size at every attempt: it begins as given and is halved after each error.",
        "wrong-value": "With a single parameter all is right. Which of your lines reaches only some of the parameters?",
        "low-precision": "A part's share of the window needs all its digits. Which line rounds it?",
        "changed-input": "The caller still needs its items. Which line of yours writes to them?",
    },
)
def _survive(answer: Callable) -> str:
    for samples, size, fits in ((16, 16, 16), (16, 16, 4), (16, 8, 1), (14, 8, 4), (13, 13, 5), (7, 16, 2)):
        case = f"a window of {samples} samples, micro-batches of {size} to begin with, {fits} fit"
        _judge_survival(answer, samples, size, Card(fits), case)
    case = "16 samples, micro-batches of 4, and from the third on only 2 samples fit"
    _judge_survival(answer, 16, 4, Card(4, later=2), case)
    _judge_model(answer)
    _judge_hopeless(answer)
    _judge_other_error(answer)
    return (
        "limits of 1 to 16 samples, windows that the micro-batch does not divide, a limit that appears in the middle "
        "of a window, none that fits, another error: every update is the mean of its window, and only memory is caught."
    )


def _judge_survival(answer: Callable, samples: int, size: int, card: Card, case: str) -> None:
    tally, optimizer, recorder = recorded_tally(samples, lr=1.0)
    recorder.start_epoch()
    items = torch.arange(samples)
    try:
        with card.watching(tally):
            worked = answer(tally, items, card.loss, optimizer, size)
    except torch.OutOfMemoryError:
        raise Mistake("not-caught", f"{case}: the error was not caught.") from None
    except Mistake as mistake:
        raise Mistake(mistake.verdict.bug, f"{case}: {mistake.verdict.message}") from None
    observed, left = recorder.observed(), tally.weight.grad
    if not card.calls and not observed.steps:
        raise Mistake("not-attempted", "no forward pass and no step has run yet.")
    if observed.steps != 1:
        bug = "irregular-window" if observed.steps else "leftover-gradients"
        raise Mistake(bug, f"{case}: {observed.steps} steps for one window.")
    _judge_row(observed.rows[0], case)
    if left is not None and left.any():
        hint = "the gradient is still there after the step: the next window begins with it"
        raise Mistake("stale-gradients", f"{case}: {hint}.")
    if how := changed(items, torch.arange(samples), "the tensor of items"):
        raise Mistake("changed-input", f"{case}: {how}.")
    if not isinstance(worked, Integral) or isinstance(worked, bool):
        hint = "return the size of micro-batch that worked, so that the next window begins with it"
        raise Mistake("wrong-type", f"{case}: {hint}.")
    while size > min(card.fits, card.later):
        size //= 2
    if worked != size:
        raise Mistake("wrong-size", f"{case}: halved until it fits, the size is {size}; you return {worked}.")


def _judge_model(answer: Callable) -> None:
    """Compares every parameter of a real model after two windows."""
    items = random_batches((11,))[0]

    def train(model: nn.Module, optimizer: Optimizer) -> None:
        for _ in range(2):
            card = Card(4, later=2, mean_loss=squared_error)
            with card.watching(model):
                answer(model, items, card.loss, optimizer, 4)

    case = "on a real model, 11 samples, micro-batches of 4, and from the third on only 2 samples fit"
    judge_model(train, large_batches([[items]] * 2), mlp(3, 4, 2).double(), sgd, case)


def _judge_row(row: Tensor, case: str) -> None:
    times = (row * len(row)).tolist()
    if close(times, [1.0] * len(times)):
        return
    found = f"{case}: {_in_words(times)} times what they should"
    if 0.0 in times:
        raise Mistake("discarded-gradients", f"{found}: some samples are not in the update.")
    if all(abs(time - 1) < ROUNDED for time in times):
        raise Mistake("low-precision", f"{found}: a factor is rounded, or was computed in a type of few digits.")
    if close(times, times[:1] * len(times)):
        raise Mistake("loss-scale", f"{found}: all equally, but by the wrong factor.")
    if sum(times) > len(times) * (1 + 1e-6) and times[0] > times[-1]:  # what came first is there twice
        raise Mistake("stale-gradients", f"{found}: the window was begun again and what it had collected was kept.")
    raise Mistake("token-weights", f"{found}: micro-batches of unequal size count the same.")


def _in_words(times: list[float]) -> str:
    """How often the samples count, as `samples 1 to 12 count 1, 13 to 14 count 0.5`."""
    parts, start = [], 1
    for count, group in groupby(rounded(times)):
        end = start + len(list(group)) - 1
        parts.append(f"{start} to {end} count {count:g}" if end > start else f"{start} counts {count:g}")
        start = end + 1
    return f"samples {', '.join(parts)}"


def _judge_hopeless(answer: Callable) -> None:
    case = "4 samples, and not even one fits"
    tally, optimizer, recorder = recorded_tally(4, lr=1.0)
    recorder.start_epoch()
    card = Card(0)
    try:
        with card.watching(tally):
            answer(tally, torch.arange(4), card.loss, optimizer, 4)
    except torch.OutOfMemoryError:
        if recorder.observed().steps:
            raise Mistake("empty-step", f"{case}: a step has run.") from None
        return
    except (ValueError, ZeroDivisionError, RuntimeError) as error:
        own = getattr(getattr(answer, "__code__", None), "co_filename", "")
        last = extract_tb(error.__traceback__)[-1]
        bug = "wrong-error" if last.line.startswith("raise") and last.filename == own else "endless"
        hint = f"the out-of-memory error itself must come out, not {type(error).__name__}: {error}"
        raise Mistake(bug, f"{case}: {hint}.") from None
    step = ", and a step has run without a gradient" if recorder.observed().steps else ""
    raise Mistake(
        "swallowed-error", f"{case}: your function returns as if all was well{step}: the error must come out."
    )


def _judge_other_error(answer: Callable) -> None:
    tally, optimizer, recorder = recorded_tally(4, lr=1.0)
    recorder.start_epoch()
    card = Card(2, error=RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    try:
        with card.watching(tally):
            answer(tally, torch.arange(4), card.loss, optimizer, 4)
    except torch.OutOfMemoryError:
        pass
    except RuntimeError:
        return
    hint = "a RuntimeError about shapes was caught as if memory had run out"
    raise Mistake("catches-too-much", f"{hint}: catch torch.OutOfMemoryError.")
