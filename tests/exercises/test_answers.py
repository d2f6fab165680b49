"""Judges accept right answers in any style, and reject wrong ones by the name of their bug."""

import math
from collections.abc import Callable

import pytest
import torch

import exhaustive
from answers import RIGHT, WRONG
from course_utils.exercises import EXERCISES, judge
from solutions import LIVE, solution, solutions


def named(answers):
    """An exercise's first answer is tried with all tests, the others in the exhaustive run."""
    return exhaustive.mark(
        [(exercise, answer) for exercise in answers for answer in answers[exercise]],
        but=[(exercise, answers[exercise][0]) for exercise in answers],
    )


SOLVED = [exercise for exercise in EXERCISES if exercise not in LIVE]
OF_FUNCTIONS = [exercise for exercise in EXERCISES if EXERCISES[exercise].takes is Callable]


@pytest.mark.parametrize(("exercise", "notebook", "answer"), solutions())
def test_a_notebooks_solution_passes(exercise, notebook, answer):
    verdict = judge(exercise, answer)
    assert verdict.passed, verdict
    assert verdict.message


def test_every_exercise_has_a_solution_in_its_notebook_and_wrong_answers():
    assert {found.exercise for found in solutions()} == {*SOLVED}
    assert {*WRONG} == {*EXERCISES}


@pytest.mark.parametrize(("exercise", "answer"), named(RIGHT))
def test_a_right_answer_passes(exercise, answer):
    verdict = judge(exercise, answer)
    assert verdict.passed, verdict


@pytest.mark.parametrize("exercise", exhaustive.mark(SOLVED, but=SOLVED[::4]))
def test_the_solution_passes_whatever_is_the_default_also_without_gradients_and_leaves_it(exercise):
    torch.set_default_dtype(torch.bfloat16)
    with torch.no_grad():
        assert judge(exercise, solution(exercise)).passed
        assert not torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.bfloat16


@pytest.mark.parametrize(
    ("exercise", "wrong"),
    [pytest.param(name, wrong, id=f"{name}-{wrong.bug}") for name in WRONG for wrong in WRONG[name]],
)
def test_a_wrong_answer_is_rejected_by_the_name_of_its_bug(exercise, wrong):
    verdict = judge(exercise, wrong.answer)
    assert (verdict.passed, verdict.bug) == (False, wrong.bug), verdict.message
    assert verdict.message
    assert wrong.says in verdict.message
    assert verdict.hint, f"no hint for {verdict.bug}"


class Unprintable:
    def __call__(self, *_):
        return self

    def __repr__(self):
        raise RuntimeError("not even this")


JUNK = {
    "None": None,
    "something that cannot be printed": [Unprintable()],
    "no arguments": lambda: 0,
    "returns ...": lambda *_: ...,
    "returns NaN": lambda *_: math.nan,
    "returns a complex number": lambda *_: 1j,
    "returns two numbers": lambda *_: torch.ones(2),
    "returns what cannot be printed": Unprintable(),
    "returns a list of junk": lambda *_: [None, "x"],
    "returns what never ends": lambda *_: iter(lambda: 0.0, 1.0),
    "draws": lambda *_: torch.rand(3),
    "turns gradients off": lambda *_: torch.set_grad_enabled(False),
    "changes the default": lambda *_: torch.set_default_dtype(torch.bfloat16) or math.sqrt(-1),
    "empties the batches": lambda *a: a[1].clear(),
    "freezes the model": lambda *a: a[0].requires_grad_(False),
    "ruins the weights": lambda model, *_: model.weight.data.fill_(math.nan),
}


@pytest.mark.parametrize("exercise", EXERCISES)
def test_junk_is_rejected_never_raises_and_leaves_torch_as_it_was(exercise):
    before = torch.get_rng_state()
    for what, answer in JUNK.items():
        verdict = judge(exercise, answer, limit=2.0 if "never ends" in what else 20.0)
        assert not verdict.passed, what
        assert verdict.bug, what
        assert verdict.message, what
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("exercise", OF_FUNCTIONS)
def test_an_untouched_stub_is_not_attempted(exercise):
    assert judge(exercise, lambda *_: None).bug == "not-attempted"


def test_an_exercise_that_nobody_knows_is_an_error():
    with pytest.raises(ValueError, match=r"no exercise is called 'slop'; there are .*, slope, "):
        judge("slop", lambda: 0)
