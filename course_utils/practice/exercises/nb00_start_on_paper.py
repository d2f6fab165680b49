"""The exercise of notebook 00 on paper: a loop that zeroes after every second step only."""

from collections.abc import Collection, Iterator

import torch

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

BLANKS = ("grad 2", "grad 3", "grad 4")
ZEROED_AFTER = (2, 4)  # the steps


def grads(zeroed_after: Collection[int] = ZEROED_AFTER, lr: float = 0.25) -> dict[str, float]:
    """What `.grad` holds after each backward pass but the first, in the loop of the notebook."""
    w = torch.zeros((), dtype=torch.float64, requires_grad=True)
    found = []
    for number in range(1, 5):
        ((w - 2) ** 2).backward()
        found.append(w.grad.item())
        with torch.no_grad():
            w -= lr * w.grad
        if number in zeroed_after:
            w.grad = None
    return dict(zip(BLANKS, found[1:], strict=True))


def _slips() -> Iterator[Slip]:
    new = {blank: now - then for blank, now, then in (("grad 2", -6, -4), ("grad 4", 1.5, 1))}
    yield Slip("forgets-to-add", "backward() adds to what is in .grad", new)
    yield Slip("zeroes-never", "the call after step 2 empties .grad", grads(()))
    yield Slip("zeroes-every-time", "after steps 1 and 3 nothing empties .grad", grads((1, 2, 3, 4)))
    yield Slip("zeroes-in-the-wrong-place", "zeroing comes after steps 2 and 4", grads((1, 3)))
    rarely = dict(zip(BLANKS, (-8, 0, 0), strict=True))  # as if w moved after every second batch only
    yield Slip("steps-too-rarely", "step() stands outside the if: it moves w after every batch", rarely)


@exercise(
    "every_second_step",
    notebook="00_start",
    takes=dict,
    hints={
        "unfinished": "Fill in all three blanks; each is a number.",
        "zeroes-never": "When does this loop empty `.grad` for the first time? What does backward pass 3 find there?",
        "zeroes-every-time": "Which steps are followed by `zero_grad()`? Where none follows, what is still in `.grad`?",
        "zeroes-in-the-wrong-place": "Write the number of the step in front of each line. After which ones is 2 a "
        "divisor?",
        "steps-too-rarely": "Which lines belong to the `if`, by their indentation? What does w look like after step 1?",
        "forgets-to-add": "The new gradient is right. What was in `.grad` when it arrived?",
        "wrong-value": "Make a table, a row for each batch: the gradient 2 * (w - 2), then `.grad`, then the new w, "
        "which is w - 0.25 * `.grad`.",
    },
)
def _every_second_step(answer: dict) -> str:
    judge_numbers(answer, grads(), _slips())
    return "PyTorch finds the same three: two gradients in each pair of steps, and none from the pair before."
