"""A judge's tolerances are for rounding: a right answer whose numbers are half a percent off is not right."""

import inspect
from collections.abc import Callable

import pytest
import torch

from course_utils.practice.exercises import judge
from solutions import solution

OFF = 1.005
WITH_NUMBERS = (
    *("slope", "forgotten", "accumulate_tokens", "token_weights"),
    "compare_batches",
)


def off(value):
    """A result with its numbers half a percent off, where they are not whole."""
    match value:
        case float():
            return value * OFF
        case torch.Tensor() if value.is_floating_point():
            return value * OFF
        case list() | tuple():
            return [off(inner) for inner in value]
        case dict():
            return {key: off(inner) for key, inner in value.items()}
    return value


def with_numbers_off(answer):
    return (lambda *arguments: off(answer(*arguments))) if callable(answer) else off(answer)


def with_off(name: str, answer: Callable) -> Callable:
    """A loop that does what it should with another loss, or another limit."""
    place = list(inspect.signature(answer).parameters).index(name)

    def loop(*arguments):
        given = arguments[place]
        wrong = (lambda *batch: given(*batch) * OFF) if callable(given) else given and given * OFF
        return answer(*arguments[:place], wrong, *arguments[place + 1 :])

    return loop


@pytest.mark.parametrize("exercise", WITH_NUMBERS)
def test_numbers_that_are_half_a_percent_off_are_not_rounded(exercise):
    assert judge(exercise, with_numbers_off(solution(exercise))).bug not in ("", "low-precision")


@pytest.mark.parametrize(
    ("exercise", "bug"),
    [("amp_window", "clip-timing"), ("two_bugs", "clip-timing")],
)
def test_a_limit_that_is_half_a_percent_off_is_named(exercise, bug):
    assert judge(exercise, with_off("max_norm", solution(exercise))).bug == bug
