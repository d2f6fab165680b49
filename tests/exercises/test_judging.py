"""When two results agree, which mistake a difference has, and what was seen of a loop."""

import math
import re
from copy import deepcopy

import pytest
import torch

from course import NOTEBOOKS
from course_utils.exercises import judging
from course_utils.exercises.judging import Mistake, agree, compare, on_paper, unchanged
from course_utils.exercises.loop import twice, watch_loop
from solutions import solution


@pytest.mark.parametrize(
    ("got", "want", "same"),
    [
        (1.0, 1.0 + 1e-8, True),
        (1.0, 1.0 + 1e-4, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (math.inf, -math.inf, False),
        ([1.0], [1.0, 2.0], False),
        (1, True, False),
        (None, 1.0, False),
        ("a", "a", True),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), True),
        (torch.ones(2), torch.ones(3), False),
        (1.0, torch.ones(1), False),
    ],
)
def test_results_agree_up_to_rounding(got, want, same):
    assert agree(got, want) is same


def test_the_first_difference_is_named_after_what_differs():
    def watch(answer, case):
        return {"first": float(answer(case)), "second": float(answer(10 * case))}

    def mistake(answer):
        with pytest.raises(Mistake) as found:
            compare(watch, answer, lambda x: 2 * x + 1, [1.0, 2.0], second=("too-short", "Where?"))
        return found.value.verdict

    verdict = mistake(lambda x: x + x)
    assert (verdict.bug, verdict.message) == ("wrong-value", "first: expected 3, got 2. Tried on 1.0.")
    verdict = mistake(lambda x: 2 * x + 1 + (x == 10))
    assert verdict.bug == "too-short"
    assert verdict.message == "second: expected 21, got 22. Tried on 1.0."
    assert verdict.hint == "Where?"


@pytest.mark.parametrize(
    ("answer", "bug", "message"),
    [
        ({"a": 1, "b": ..., "c": None}, "not-attempted", "nothing is written for b yet."),
        ({"a": 3, "b": 7, "c": None}, "added", "you wrote a = 3: nothing is added; b = 7: not right yet."),
        ({"a": 8, "b": 2, "c": 0}, "wrong-value", "you wrote a = 8 and c = 0: not right yet."),
    ],
)
def test_on_paper_each_mistake_is_said_of_the_blanks_that_it_explains_and_of_no_other(
    monkeypatch, answer, bug, message
):
    monkeypatch.setattr(judging, "EXERCISES", {})
    right = {"a": 1, "b": 2, "c": None}
    on_paper("sum", right, "three numbers.", "Add?", ("added", {"a": 3, "b": 4}, "nothing is added"))
    judge = judging.EXERCISES["sum"].judge
    judge(right)
    with pytest.raises(Mistake) as found:
        judge(answer)
    assert (found.value.verdict.bug, found.value.verdict.message) == (bug, message)


def test_the_program_on_paper_is_that_which_the_notebook_shows():
    (program,) = re.findall(r"```python\n(w = .*?)```", NOTEBOOKS["01_gradients"].prose, flags=re.S)
    names = {"torch": torch}
    exec(program, names)
    found = solution("grad_on_paper")
    assert (found["w.grad"], found["x.grad"]) == (names["w"].grad.item(), names["x"].grad.item())
    assert not names["a"].is_leaf


def test_a_change_to_what_was_given_is_found_wherever_it_is():
    def given():
        return [(torch.arange(3), torch.zeros(2)), (torch.arange(2), torch.ones(1))]

    now = given()
    unchanged(now, given())
    now[1][1].add_(1)
    for other in (now, given()[:1]):
        with pytest.raises(Mistake, match="changed what it was given"):
            unchanged(other, given())


def test_each_call_of_a_loop_has_samples_of_its_own_and_weights_and_memory_agree_within_their_limits():
    right, mine = (watch_loop(solution("accumulate"), twice((2, 2), n=2))["updates"] for _ in range(2))
    assert [step.row.tolist() for step in right.steps] == [[0.25] * 4 + [0.0] * 5, [0.0] * 4 + [0.25] * 4 + [0.0]]
    assert [step.call for step in right.steps] == [0, 1]
    mine.model, mine.peak, right.peak = deepcopy(right.model), 17, 10
    mine.compare(right)
    mine.peak = 19
    with pytest.raises(Mistake, match="19 bytes are kept"):
        mine.compare(right)
    mine.model.weight.data += 2e-5
    with pytest.raises(Mistake, match="a weight ends up 2e-05 off"):
        mine.compare(right)
