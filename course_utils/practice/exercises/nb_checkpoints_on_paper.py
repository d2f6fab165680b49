"""The exercise of *checkpoints* on paper: what the first update after a resume adds up to."""

import torch

from course_utils.models import Tally
from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

N, KILLED = 4, 6
RUNS = {  # whether .grad is in the file, the micro-batch with which the run goes on, and the count it gets
    "A": (False, 7, 7),
    "B": (True, 7, 1),
    "C": (True, 5, 5),
    "D": (False, 5, 5),
    "E": (True, 2, 2),
}


def first_update(gradients: bool, first: int, count: int, share: float = 1 / N) -> float:
    """What the weights of the micro-batches in the first update after a resume add up to, computed by autograd."""
    tally = Tally(12).double()
    batches = torch.arange(12).split(1)
    if gradients:
        for batch in batches[KILLED // N * N : KILLED]:
            (tally(batch).mean() * share).backward()
    for number, batch in enumerate(batches[first - 1 :], start=count):
        (tally(batch).mean() * share).backward()
        if number % N == 0:
            break
    return tally.weight.grad.sum().item()


def _slips() -> list[Slip]:
    return [
        Slip(
            "counts-micro-batches",
            "that counts micro-batches; each of them has a weight of 1/4",
            {name: first_update(*run, share=1.0) for name, run in RUNS.items()},
        ),
        Slip(
            "forgets-the-file",
            "the file holds the gradients of micro-batches 5 and 6, and nothing zeroes them",
            {name: first_update(False, *run[1:]) for name, run in RUNS.items() if run[0]},
        ),
        Slip(
            "adds-lost-gradients",
            "without .grad in the file, 5 and 6 are gone unless they run again",
            {name: first_update(True, *run[1:]) for name, run in RUNS.items() if not run[0]},
        ),
        Slip(
            "always-full",
            "an update is what .grad holds at the step, and that need not be a full window",
            dict.fromkeys(RUNS, 1.0),
        ),
    ]


@exercise(
    "first_update_after",
    notebook="checkpoints",
    takes=dict,
    hints={
        "counts-micro-batches": "Each loss is divided by 4 before its backward pass. What do you add up?",
        "forgets-the-file": "What is in `.grad` before the first backward pass of the new process?",
        "adds-lost-gradients": "A new process begins with an empty `.grad`. Who fills it, if not the file?",
        "always-full": "Write down which micro-batches are added before the count is a multiple of 4.",
        "wrong-value": "List the micro-batches in `.grad` at the step: those from the file, then those that run.",
    },
)
def _first_update_after(answer: dict) -> str:
    judge_numbers(answer, {name: first_update(*run) for name, run in RUNS.items()}, _slips())
    return "autograd finds the same in all five runs."
