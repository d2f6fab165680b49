"""The exercise of notebook 02 on paper: what the third step of a program in letters reads from `.grad`."""

from collections.abc import Iterator
from itertools import cycle

import torch
from torch import nn

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

PROGRAMS = ("fbs", "bszf", "fbszs", "fbzfbs", "fbzs")


def read_by_step(program: str, number: int = 3, ignored: str = "") -> float | None:
    """What a program's step finds in `.grad`, as autograd has it. Batch k has the gradient 10 ** (k - 1).

    Args:
        program: Letters: z for zero_grad, f forward, b backward, s step. It is repeated for ever.
        number: Which step, counted from 1.
        ignored: Letters that do nothing.
    """
    w, loss, batch = nn.Parameter(torch.ones((), dtype=torch.float64)), None, 0
    optimizer = torch.optim.SGD([w], lr=0.1)
    for letter in cycle(program):
        if letter == "f":
            batch, loss = batch + 1, 10.0**batch * w
        elif letter == "s":
            number -= 1
            if not number:
                return None if w.grad is None else w.grad.item()
            optimizer.step()
        elif letter == "b" and loss is not None:
            loss.backward()
        elif letter == "z" and letter not in ignored:
            optimizer.zero_grad()


def _slips() -> Iterator[Slip]:
    kept = {program: read_by_step(program, ignored="z") for program in PROGRAMS if "z" in program}
    yield Slip("nothing-clears", "there is no z in it, and neither b nor s clears", {"fbs": read_by_step("fbsz")})
    yield Slip("forgets-z", "a z clears all that is in .grad at that moment", kept)
    yield Slip(
        "forgets-z",
        "its z clears what the b before it brought",
        {"fbzfbs": lambda got: got in (read_by_step("fbfbsz"), read_by_step("fbsz", 5)), "fbzs": read_by_step("fbsz")},
    )
    yield Slip(
        "counts-rounds",
        "count the steps from the start, and the batches, not the rounds",
        {"fbszs": lambda got: got in (read_by_step("fbsz"), None), "fbzfbs": read_by_step("fbsz")},
    )
    yield Slip(
        "backward-before-forward",
        "its b comes before the f of the same round, so look which loss is there",
        {"bszf": lambda got: got in (read_by_step("fbsz"), read_by_step("fbsz", 1), None)},
    )
    yield Slip("none-is-not-zero", "zero_grad() with its defaults leaves no tensor at all", {"fbzs": 0.0})


@exercise(
    "third_step",
    notebook="02_zeroing",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank. Write `None` where there is no `.grad` at all.",
        "nothing-clears": "Which of the four letters takes something out of `.grad`? Is it in this program?",
        "forgets-z": "Write down `.grad` after every letter. What is left of it after a `z`?",
        "counts-rounds": "Write the program out three times in a row, and number its steps: 1, 2, 3.",
        "backward-before-forward": "Write down after every letter which batch's loss there is, and what is in `.grad`.",
        "none-is-not-zero": "What does `.grad` hold after `zero_grad()`, if you do not ask for zeros?",
        "wrong-value": "Write the program out three times in a row. Under every letter, write what is in `.grad`.",
    },
)
def _third_step(answer: dict) -> str:
    judge_numbers(answer, {program: read_by_step(program) for program in PROGRAMS}, _slips())
    return "autograd finds the same at the third step of all five programs."
