"""The exercise of notebook 09b: a window that survives running out of memory."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from course_utils.models import Tally
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake


class _Activations:
    """Stands for what a forward that failed had already put on the card: its error's traceback holds it."""


@dataclass
class _Card:
    """A loss that raises where a micro-batch is larger than what fits, and counts what it is given."""

    fits: int
    calls: list[int] = field(default_factory=list)
    other: bool = False  # raise something else in place of an out-of-memory error
    refs: list[weakref.ref] = field(default_factory=list)  # to what the failed forwards held

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        self.calls.append(len(batch))
        if len(self.calls) > 500:
            raise Mistake("endless", "more than 500 forwards for one update: what happens when not even one item fits?")
        if any(ref() is not None for ref in self.refs):
            raise Mistake(
                "kept-activations",
                f"a micro-batch of {len(batch)} went forward while the error of one that failed was still there: its "
                "traceback holds the activations of that forward, and a real card has no more room than before.",
            )
        if len(batch) > self.fits:
            if self.other:
                raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
            held = _Activations()
            self.refs.append(weakref.ref(held))
            raise torch.OutOfMemoryError("out of memory (simulated)")
        return model(batch).mean()


_SURVIVALS = (  # items of the window, micro-batch to begin with, what fits from the call on
    (16, 16, 16),
    (16, 16, 4),
    (16, 8, 1),
    (14, 8, 4),
    (13, 13, 5),
    (7, 16, 2),
)


@exercise("survive")
def _survive(answer: Callable) -> str:
    for items, micro, fits in _SURVIVALS:
        _judge_survival(answer, items, micro, _Card(fits))
    _judge_late(answer)
    _judge_hopeless(answer)
    _judge_other_error(answer)
    return (
        "limits of 1 to 16 items, windows that the micro-batch does not divide, a limit that appears in the middle of "
        "a window, none that fits, another error: every update is the mean of its window, and only memory is caught."
    )


def _tally(items: int) -> tuple[Tally, torch.optim.Optimizer, list[Tensor]]:
    tally, rows = Tally(items).double(), []
    optimizer = torch.optim.SGD(tally.parameters(), lr=1.0)
    optimizer.register_step_pre_hook(
        lambda *_: rows.append(torch.zeros(items) if tally.weight.grad is None else tally.weight.grad.detach().clone())
    )
    return tally, optimizer, rows


def _judge_survival(answer: Callable, items: int, micro: int, card: _Card, case: str = "") -> None:
    tally, optimizer, rows = _tally(items)
    case = case or f"a window of {items} items, micro-batches of {micro} to begin with, {card.fits} fit"
    try:
        size = answer(tally, torch.arange(items), card.loss, optimizer, micro)
    except torch.OutOfMemoryError:
        raise Mistake("not-caught", f"{case}: the error went through.") from None
    if not card.calls and not rows:
        raise Mistake("not-attempted", "no forward and no step has run yet.")
    if len(rows) != 1:
        bug = "leftover-gradients" if not rows else "irregular-window"
        raise Mistake(bug, f"{case}: {len(rows)} steps for one window.")
    _judge_row(rows[0], items, case)
    if tally.weight.grad is not None and tally.weight.grad.any():
        raise Mistake(
            "stale-gradients", f"{case}: the gradient is still there after the step: the next window begins with it."
        )
    _judge_size(size, micro, card, case)


def _judge_row(row: Tensor, items: int, case: str) -> None:
    want = torch.full_like(row, 1 / items)
    if torch.allclose(row, want, rtol=1e-6):
        return
    shares = [f"{share:g}" for share in (row * items).tolist()[:8]]
    seen = f"{case}: items count {', '.join(shares)} times what they should"
    if not row.all():
        raise Mistake("discarded-gradients", f"{seen}: some items are not in the update.")
    if torch.allclose(row / row.sum(), want, rtol=1e-6):
        raise Mistake("loss-scale", f"{seen}: all equally, and wrong.")
    if row.sum() > 1 + 1e-6 and row[0] > row[-1]:  # what came first is there twice
        raise Mistake("stale-gradients", f"{seen}: the window was begun again and what it had collected was kept.")
    raise Mistake("token-weights", f"{seen}: micro-batches of unequal size count the same.")


def _judge_size(size: object, micro: int, card: _Card, case: str) -> None:
    if not isinstance(size, int):
        raise Mistake(
            "wrong-type", f"{case}: return the size of micro-batch that worked, so that the next window begins with it."
        )
    want = micro
    while want > card.fits:
        want //= 2
    if size != want:
        raise Mistake("wrong-size", f"{case}: halved until it fits, the size is {want}; you return {size}.")


def _judge_late(answer: Callable) -> None:
    """What else is on the card grows: from the third micro-batch on only half fits."""
    card = _Card(4)

    def shrinking(model, batch):
        card.fits = 4 if len(card.calls) < 2 else 2
        return card.loss(model, batch)

    tally, optimizer, rows = _tally(16)
    size = answer(tally, torch.arange(16), shrinking, optimizer, 4)
    case = "16 items, micro-batches of 4, and from the third on only 2 items fit"
    if len(rows) != 1:
        raise Mistake("irregular-window", f"{case}: {len(rows)} steps for one window.")
    _judge_row(rows[0], 16, case)
    if size != 2:
        raise Mistake("wrong-size", f"{case}: the size that worked is 2; you return {size}.")


def _judge_hopeless(answer: Callable) -> None:
    tally, optimizer, rows = _tally(4)
    case = "4 items, and not even one fits"
    try:
        answer(tally, torch.arange(4), _Card(0).loss, optimizer, 4)
    except torch.OutOfMemoryError:
        if rows:
            raise Mistake("empty-step", f"{case}: a step has run.") from None
        return
    except (ValueError, ZeroDivisionError, RuntimeError) as error:
        raise Mistake("endless", f"{case}: raise the out-of-memory error itself, not {type(error).__name__}.") from None
    raise Mistake("endless", f"{case}: the error must come out in the end.")


def _judge_other_error(answer: Callable) -> None:
    tally, optimizer, _ = _tally(4)
    try:
        answer(tally, torch.arange(4), _Card(2, other=True).loss, optimizer, 4)
    except torch.OutOfMemoryError:
        pass
    except RuntimeError:
        return
    raise Mistake(
        "catches-too-much", "a RuntimeError about shapes was caught as if memory had run out: catch the class."
    )
