"""An answer that is wrong in one of a judge's cases alone is rejected: no case of a judge can go unnoticed."""

from collections.abc import Callable
from inspect import signature
from types import SimpleNamespace
from weakref import WeakKeyDictionary

import pytest
from torch.optim import Adam, Optimizer

from course_utils.exercises import judge
from solutions import solution

OFF = 1.005


def sizes(given: SimpleNamespace) -> list[int]:
    return [len(batch[0] if isinstance(batch, tuple) else batch) for batch in given.batches]


IN = {  # what is special about a case, as the arguments and the number of the call show it
    "N = 1": lambda given: given.n == 1,
    "N = 2": lambda given: given.n == 2,
    "N = 3": lambda given: given.n == 3,
    "N = 4": lambda given: given.n == 4,
    "a window longer than the epoch": lambda given: given.n > len(given.batches),
    "a short last window": lambda given: len(given.batches) % given.n,
    "ragged micro-batches": lambda given: len({*sizes(given)}) > 1,
    "one micro-batch": lambda given: len(given.batches) == 1,
    "a real model": lambda given: len([*given.model.parameters()]) > 1,
    "a tally": lambda given: len([*given.model.parameters()]) == 1,
    "an old gradient": lambda given: given.call == 1 and any(p.grad is not None for p in given.model.parameters()),
    "the first call": lambda given: given.call == 1,
    "the second call": lambda given: given.call == 2,
    "the third call": lambda given: given.call == 3,
    "the fourth call": lambda given: given.call == 4,
    "one epoch": lambda given: given.epochs == 1,
    "three epochs": lambda given: given.epochs == 3,
    "Adam": lambda given: isinstance(given.optimizer, Adam),
    "a scaler that is switched off": lambda given: not given.scaler.is_enabled(),
}
LOOP = "the second call", "a real model", "a real model, the second call", "a real model, Adam", "ragged micro-batches"
WINDOWS = (
    *("N = 1", "N = 2", "N = 4", "a window longer than the epoch", "a short last window", "a real model, N = 1"),
    *("a real model, N = 4", "a real model, a window longer than the epoch", *LOOP),
)
CASES = {
    "first_loop": LOOP,
    "train": (*LOOP, "an old gradient"),
    "accumulate_equal": (
        *("N = 1", "N = 2", "N = 3", "N = 4", "an old gradient", "the second call"),
        *("a real model, N = 2", "a real model, N = 4", "a real model, the second call"),
    ),
    "accumulate": (*WINDOWS, "an old gradient"),
    "accumulate_tokens": (
        *("N = 1", "N = 3", "a window longer than the epoch", "an old gradient", "the second call"),
        "a real model, Adam",
        *("a real model, N = 1", "a real model, N = 2", "a real model, N = 4", "a real model, the second call"),
    ),
    "scheduled": (
        *("N = 1", "N = 4", "a window longer than the epoch", "an old gradient", "one epoch", "three epochs"),
        *("a real model, N = 1", "a real model, N = 2", "a real model, a window longer than the epoch"),
    ),
    "two_bugs": (
        *("N = 1", "a window longer than the epoch", "the second call", "an old gradient"),
        *("a real model, N = 1", "a real model, N = 4", "a real model, a window longer than the epoch"),
    ),
    "amp_window": (
        *("one micro-batch", "the third call", "the fourth call", "a tally, a scaler that is switched off"),
        *("a real model", "a real model, Adam", "a real model, a scaler that is switched off"),
    ),
    "bf16_window": ("the first call", "the second call", "the third call"),
}
EVERY, LAST = slice(None), slice(-1, None)


def wrong_in(cases: str, exercise: str, parameters: slice = EVERY) -> Callable:
    """The solution, but in these cases each step uses other gradients of these parameters."""
    answer, calls = solution(exercise), WeakKeyDictionary()
    names = [{"window": "batches"}.get(name, name) for name in signature(answer).parameters]

    def spoil(optimizer: Optimizer, *_) -> None:
        for p in [p for group in optimizer.param_groups for p in group["params"]][parameters]:
            if p.grad is not None:
                p.grad.mul_(OFF).add_(OFF - 1)  # Adam takes no notice of a factor alone

    def loop(*arguments):
        given = SimpleNamespace(**dict(zip(names, arguments, strict=True)))
        given.call = calls[given.optimizer] = calls.get(given.optimizer, 0) + 1
        if not all(IN[case](given) for case in cases.split(", ")):
            return answer(*arguments)
        handle = given.optimizer.register_step_pre_hook(spoil)
        try:
            return answer(*arguments)
        finally:
            handle.remove()

    return loop


@pytest.mark.parametrize(("exercise", "cases"), [(exercise, cases) for exercise in CASES for cases in CASES[exercise]])
def test_an_answer_that_is_wrong_in_one_case_is_rejected(exercise, cases):
    assert judge(exercise, wrong_in(cases, exercise)).bug not in ("", "raises")


@pytest.mark.parametrize("exercise", [*CASES])
def test_an_answer_that_is_wrong_in_the_last_parameter_is_rejected(exercise):
    cases = "the first call" if exercise in ("scheduled", "bf16_window") else "the second call"
    assert judge(exercise, wrong_in(cases, exercise, LAST)).bug not in ("", "raises")
