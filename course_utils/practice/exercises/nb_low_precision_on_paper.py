"""The exercise of *low precision* on paper: where sums and weights of 16 bits stop."""

from collections.abc import Iterator
from functools import cache

import torch

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

QUARTERS = "sum of 1/4s in bfloat16"
COUNT = "how many count"
THREES = "sum of 3s in float16"
UPDATE = "lost in 8.0 in bfloat16"


@cache
def stops_at(addend: float, dtype: torch.dtype) -> tuple[float, int]:
    """Where a sum of equal addends stops, and how many it takes: added up one by one."""
    held, many = torch.zeros((), dtype=dtype), 0
    while held + addend != held:
        held, many = held + addend, many + 1
    return held.item(), many


def measured() -> dict[str, float]:
    quarters, many = stops_at(0.25, torch.bfloat16)
    weight = torch.tensor(8.0, dtype=torch.bfloat16)
    lost = max(2.0**-k for k in range(20) if weight + 2.0**-k == weight)
    return {QUARTERS: quarters, COUNT: many, THREES: stops_at(3.0, torch.float16)[0], UPDATE: lost}


def _slips() -> Iterator[Slip]:
    right = measured()
    yield Slip("as-for-ones", "that is where a sum of 1s stops; a smaller addend stops earlier, a larger one later", {
        QUARTERS: 4 * right[QUARTERS], THREES: stops_at(1.0, torch.float16)[0],
    })  # fmt: skip
    yield Slip("swapped", "the value of the sum and the number of addends are two things", {
        QUARTERS: right[COUNT], COUNT: right[QUARTERS],
    })  # fmt: skip
    yield Slip("whole-step", "an addend of half a rounding step is a tie, which goes to the even neighbour", {
        QUARTERS: 2 * right[QUARTERS], COUNT: 2 * right[COUNT], THREES: 2 * right[THREES], UPDATE: right[UPDATE] / 2,
    })  # fmt: skip
    yield Slip("too-wide", "a whole rounding step is a neighbour, so it is never lost", {
        QUARTERS: right[QUARTERS] / 2, COUNT: right[COUNT] / 2, THREES: right[THREES] / 2, UPDATE: 2 * right[UPDATE],
    })  # fmt: skip
    yield Slip("wrong-format", "this one has 11 significant bits", {THREES: stops_at(3.0, torch.bfloat16)[0]})
    yield Slip("as-near-one", "the rounding step at 8.0 is not that at 1.0", {
        UPDATE: lambda got: got in (2.0**-8, 2.0**-7),
    })  # fmt: skip


@exercise(
    "stops_on_paper",
    notebook="low_precision",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank. `1 / 3` is a number, too.",
        "as-for-ones": "09_amp, Step 1: dividing every addend did not change how many of them count.",
        "swapped": "The sum of 1/4s after four addends is 1.",
        "whole-step": "What happens to 256 + 1 (09_amp, Step 1), exactly between two neighbours?",
        "too-wide": "How far is the next number at the place where you stop?",
        "wrong-format": "09_amp, Step 1: what comes after 256 in float16?",
        "as-near-one": "The rounding step doubles at every power of two. How many are there from 1 to 8?",
        "wrong-value": "Write down the rounding step between 2**k and 2**(k + 1), and then half of it.",
    },
)
def _stops_on_paper(answer: dict) -> str:
    judge_numbers(answer, measured(), _slips())
    return "these are the numbers that come out when the additions run."
