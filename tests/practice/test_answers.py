"""Every judge accepts right answers in whatever style, and rejects wrong ones by the name of their bug."""

import math
import reprlib
from collections.abc import Callable

import pytest
import torch

import exhaustive
from answers import RIGHT, WRONG
from course_utils.practice.exercises import EXERCISES, judge
from solutions import LIVE, solution, solutions


def name_of(answer):
    """A function's name; of any other answer, how it begins."""
    return getattr(answer, "__name__", None) or reprlib.repr(answer)


def named(answers, always=1):
    """So many answers to each exercise are tried whenever all tests run, the others in the exhaustive run."""
    return [
        pytest.param(
            exercise,
            a,
            id=f"{exercise}-{name_of(a)}",
            marks=() if k < always or EXERCISES[exercise].takes is dict else pytest.mark.exhaustive,
        )
        for exercise in answers
        for k, a in enumerate(answers[exercise])
    ]


SOLVED = [exercise for exercise in EXERCISES if exercise not in LIVE]
OF_FUNCTIONS = [exercise for exercise in EXERCISES if EXERCISES[exercise].takes is Callable]


# Slow to judge, so that further wrong answers are left to the exhaustive run
SLOW = "accumulate_tokens amp_window ddp_window gan_updates train_on two_bugs write_the_test"


def wrong_answers():
    for exercise, answers in WRONG.items():
        known = set()
        for wrong in answers:
            further = exercise in SLOW.split() and wrong.bug in known
            known.add(wrong.bug)
            name = "-".join((exercise, name_of(wrong.answer), *wrong.sources))
            yield pytest.param(exercise, wrong, id=name, marks=pytest.mark.exhaustive if further else ())


@pytest.mark.parametrize("exercise", EXERCISES)
def test_every_exercise_has_right_and_wrong_answers_and_a_solution_in_its_notebook(exercise):
    assert RIGHT[exercise]
    assert WRONG[exercise]
    if exercise not in LIVE:  # whose solution is tested where the notebook runs
        found = next(found for found in solutions() if found.exercise == exercise)
        assert found.notebook == EXERCISES[exercise].notebook


@pytest.mark.parametrize(("exercise", "notebook", "answer"), solutions())
def test_a_notebooks_solution_passes(exercise, notebook, answer):
    verdict = judge(exercise, answer)
    assert verdict.passed, verdict
    assert verdict.message


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


def unexplained(exercise, wrong, verdict):
    """The numbers on paper that are wrong and that the verdict doesn't name beside the slip which leads to them."""
    if EXERCISES[exercise].takes is not dict or not isinstance(wrong.answer, dict):
        return []
    if wrong.bug in ("wrong-type", "unfinished", "not-attempted"):
        return []
    correct = RIGHT[exercise][0]
    return [
        blank for blank, got in wrong.answer.items() if got != correct[blank] and f"{blank} = " not in verdict.message
    ]


@pytest.mark.parametrize(("exercise", "wrong"), [*wrong_answers()])
def test_a_wrong_answer_is_rejected_by_the_name_of_its_bug(exercise, wrong):
    verdict = judge(exercise, wrong.answer)
    assert (verdict.passed, verdict.bug) == (False, wrong.bug), verdict.message
    assert verdict.message
    assert wrong.says in verdict.message
    assert not unexplained(exercise, wrong, verdict)
    assert verdict.hint, f"no hint for {verdict.bug}: add it to HINTS, or to the exercise's own hints"


@pytest.mark.parametrize("exercise", exhaustive.mark([name for name in SOLVED if EXERCISES[name].edits], but=["slope"]))
def test_a_known_mistake_is_rejected_by_its_own_name(exercise):
    found = EXERCISES[exercise]
    for edit in found.edits:
        answer = found.made(edit)
        verdict = judge(exercise, answer() if found.takes is dict else answer)
        assert verdict.bug == edit.bug.partition("/")[0], (edit, verdict)


# Junk.


def raises(*_):
    raise KeyError("no such thing")


def leaves_python(*_):
    raise SystemExit(1)


def calls_itself(*arguments):
    return calls_itself(*arguments)


class Unprintable:
    def __call__(self, *_):
        return self

    def __repr__(self):
        raise RuntimeError("not even this")


JUNK = {
    "None": None,
    "a number": 3,
    "something that cannot be printed": [Unprintable()],
    "no arguments": lambda: 0,
    "returns None": lambda *_: None,
    "returns ...": lambda *_: ...,
    "returns NaN": lambda *_: math.nan,
    "returns a complex number": lambda *_: 1j,
    "returns two numbers": lambda *_: torch.ones(2),
    "returns what cannot be printed": Unprintable(),
    "returns a list of junk": lambda *_: [None, "x"],
    "returns what never ends": lambda *_: iter(lambda: 0.0, 1.0),
    "a class": dict,
    "draws": lambda *_: torch.rand(3),
    "raises": raises,
    "leaves Python": leaves_python,
    "calls itself for ever": calls_itself,
    "turns gradients off": lambda *_: torch.set_grad_enabled(False),
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


# The judges' frame.


def test_an_exercise_that_nobody_knows_is_an_error():
    with pytest.raises(ValueError, match=r"no exercise is called 'slop'; there are first_loop, "):
        judge("slop", lambda: 0)


def test_judging_leaves_the_default_dtype_as_it_was():
    def slope(f, w, h):
        torch.set_default_dtype(torch.bfloat16)
        raise KeyError("an error takes the same way out")

    torch.set_default_dtype(torch.float32)
    judge("slope", slope)
    assert torch.get_default_dtype() == torch.float32
