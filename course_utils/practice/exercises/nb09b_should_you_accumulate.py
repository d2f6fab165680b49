"""The exercise of notebook 09b: a window that survives running out of memory."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor, nn

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, close, rounded
from course_utils.practice.updates import recorded_tally


class Activations:
    """Stands for what a forward pass that failed had already put on the card: its error's traceback holds it."""


@dataclass
class Card:
    """A loss that raises where a micro-batch is larger than what fits."""

    fits: float
    later: float = inf  # how many samples fit from the third call on
    error: Exception = field(default_factory=lambda: torch.OutOfMemoryError("out of memory (simulated)"))
    calls: int = 0
    failed: list[weakref.ref] = field(default_factory=list)  # to what the failed forward passes held

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 500:
            hint = "what happens when not even one sample fits?"
            raise Mistake("endless", f"more than 500 forward passes for one update: {hint}")
        if any(ref() is not None for ref in self.failed):
            raise Mistake(
                "kept-activations",
                f"a micro-batch of {len(batch)} went forward while the error of one that failed was still there: its "
                "traceback holds the activations of that forward pass, and a real card has no more room than before.",
            )
        if len(batch) > min(self.fits, self.later if self.calls > 2 else inf):
            held = Activations()
            self.failed.append(weakref.ref(held))
            raise type(self.error)(*self.error.args)
        return model(batch).mean()


@exercise(
    "survive",
    hints={
        "stale-gradients": "What is in `.grad` when you begin the window again?",
        "discarded-gradients": "After an error the window begins again with its first item. And zeroing belongs before "
        "the loop over the parts, not inside it.",
        "token-weights": "The last part may be shorter. Each part counts by its share of all items, whatever the size "
        "is by now.",
        "loss-scale": "The last part may be shorter. Each part counts by its share of all items, whatever the size is "
        "by now.",
        "endless": "Half of one is none. Where do you stop?",
        "kept-activations": "Where does the next attempt begin: inside the `except` or after it?",
        "catches-too-much": "Which class do you catch?",
        "not-caught": "Which error does PyTorch raise when memory runs out, and which do you catch?",
        "wrong-size": "Return the size with which the whole window went through.",
    },
)
def _survive(answer: Callable) -> str:
    for samples, size, fits in ((16, 16, 16), (16, 16, 4), (16, 8, 1), (14, 8, 4), (13, 13, 5), (7, 16, 2)):
        case = f"a window of {samples} samples, micro-batches of {size} to begin with, {fits} fit"
        _judge_survival(answer, samples, size, Card(fits), case)
    case = "16 samples, micro-batches of 4, and from the third on only 2 samples fit"
    _judge_survival(answer, 16, 4, Card(4, later=2), case)
    _judge_hopeless(answer)
    _judge_other_error(answer)
    return (
        "limits of 1 to 16 samples, windows that the micro-batch does not divide, a limit that appears in the middle "
        "of a window, none that fits, another error: every update is the mean of its window, and only memory is caught."
    )


def _judge_survival(answer: Callable, samples: int, size: int, card: Card, case: str) -> None:
    tally, optimizer, recorder = recorded_tally(samples, lr=1.0)
    recorder.start_epoch()
    try:
        worked = answer(tally, torch.arange(samples), card.loss, optimizer, size)
    except torch.OutOfMemoryError:
        raise Mistake("not-caught", f"{case}: the error was not caught.") from None
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
    if not isinstance(worked, int):
        hint = "return the size of micro-batch that worked, so that the next window begins with it"
        raise Mistake("wrong-type", f"{case}: {hint}.")
    while size > min(card.fits, card.later):
        size //= 2
    if worked != size:
        raise Mistake("wrong-size", f"{case}: halved until it fits, the size is {size}; you return {worked}.")


def _judge_row(row: Tensor, case: str) -> None:
    times = (row * len(row)).tolist()
    if close(times, [1.0] * len(times)):
        return
    found = f"{case}: samples count {rounded(times[:8])} times what they should"
    if 0.0 in times:
        raise Mistake("discarded-gradients", f"{found}: some samples are not in the update.")
    if close(times, times[:1] * len(times)):
        raise Mistake("loss-scale", f"{found}: all equally, but by the wrong factor.")
    if sum(times) > len(times) * (1 + 1e-6) and times[0] > times[-1]:  # what came first is there twice
        raise Mistake("stale-gradients", f"{found}: the window was begun again and what it had collected was kept.")
    raise Mistake("token-weights", f"{found}: micro-batches of unequal size count the same.")


def _judge_hopeless(answer: Callable) -> None:
    case = "4 samples, and not even one fits"
    tally, optimizer, recorder = recorded_tally(4, lr=1.0)
    recorder.start_epoch()
    try:
        answer(tally, torch.arange(4), Card(0).loss, optimizer, 4)
    except torch.OutOfMemoryError:
        if recorder.observed().steps:
            raise Mistake("empty-step", f"{case}: a step has run.") from None
        return
    except (ValueError, ZeroDivisionError, RuntimeError) as error:
        raise Mistake("endless", f"{case}: raise the out-of-memory error itself, not {type(error).__name__}.") from None
    raise Mistake("endless", f"{case}: the error must come out in the end.")


def _judge_other_error(answer: Callable) -> None:
    tally, optimizer, recorder = recorded_tally(4, lr=1.0)
    recorder.start_epoch()
    card = Card(2, error=RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    try:
        answer(tally, torch.arange(4), card.loss, optimizer, 4)
    except torch.OutOfMemoryError:
        pass
    except RuntimeError:
        return
    hint = "a RuntimeError about shapes was caught as if memory had run out"
    raise Mistake("catches-too-much", f"{hint}: catch torch.OutOfMemoryError.")
