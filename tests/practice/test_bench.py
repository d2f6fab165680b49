"""The bench: when two results agree, which mistake a difference is named after, and what was seen of a loop."""

import math
import re

import pytest
import torch

from course import NOTEBOOKS
from course_utils.practice import bench
from course_utils.practice.bench import Exercise, Mistake, agree, changed, edits
from course_utils.practice.exercises import EXERCISES
from course_utils.practice.loop import Memory, Weights, twice, watch_loop


@pytest.mark.parametrize(
    ("got", "want", "same"),
    [
        (1.0, 1.0 + 1e-8, True),
        (1.0, 1.0 + 1e-4, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (1.0, math.inf, False),
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0], [1.0, 2.0], False),
        (1, True, False),
        (None, 1.0, False),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), True),
        (torch.ones(2), torch.ones(3), False),
        (torch.tensor([math.nan]), torch.tensor([0.0]), False),
        (1.0, torch.ones(1), False),
    ],
)
def test_results_agree_up_to_rounding(got, want, same):
    assert agree(got, want) is same


def double(x):
    y = 2 * x
    return y + 1


def watch(answer, case):
    return {"first": float(answer(case)), "second": float(answer(10 * case))}


DOUBLE = Exercise(
    "double",
    "",
    watch,
    double,
    cases=[1.0, 2.0],
    edits=[
        *edits("no-sum", "y + 1", "y"),
        *edits("no-product", "2 * x", "x"),
        *edits("one", "return y + 1", "return 3.0"),
    ],
    channels={"second": "too-short"},
)


def mistake(answer, exercise=DOUBLE):
    with pytest.raises(Mistake) as found:
        exercise.judge(answer)
    return found.value.verdict


def test_a_difference_is_named_after_the_edit_that_gives_it_else_after_its_channel(monkeypatch):
    table = {"passed": {"double": "all is right"}, "double": {"no-sum": {"says": "the sum is missing"}}}
    monkeypatch.setattr(bench, "_mistakes", lambda: table)
    assert DOUBLE.judge(lambda x: x + x + 1) == "all is right"
    verdict = mistake(lambda x: x + x)
    assert (verdict.bug, verdict.message) == ("no-sum", "1.0: first: expected 3, got 2: the sum is missing.")
    assert mistake(lambda x: x + 1).bug == "no-product"
    assert mistake(lambda x: 3.0).bug == "one"
    assert mistake(lambda x: 2 * x + 1 + (x == 10)).bug == "too-short"
    assert mistake(lambda x: 17 * x).bug == "wrong-value"


def test_an_edit_of_what_the_solution_does_not_say_is_an_error():
    for exercise in EXERCISES.values():
        for edit in exercise.edits:
            exercise.made(edit)
    with pytest.raises(ValueError, match="'nowhere' is 0 times in"):
        DOUBLE.made(bench.Edit("", "nowhere", ""))


def test_the_program_on_paper_is_that_which_the_notebook_shows():
    (program,) = re.findall(r"```python\n(w = .*?)```", NOTEBOOKS["01_gradients"].prose, flags=re.S)
    names = {"torch": torch}
    exec(program, names)
    found = EXERCISES["grad_on_paper"].solution()
    assert (found["w.grad"], found["x.grad"]) == (names["w"].grad.item(), names["x"].grad.item())
    assert not names["a"].is_leaf


def test_a_change_to_what_was_given_is_found_wherever_it_is():
    def given():
        return [(torch.arange(3), torch.zeros(2)), (torch.arange(2), torch.ones(1))]

    now = given()
    assert changed(now, given()) == ""
    now[1][1].add_(1)
    assert changed(now, given()) == "your function changed it in place"
    assert "has 1 entries afterwards instead of 2" in changed(now[:1], given())
    assert changed([(None, None), now[1]], given())


def test_each_call_of_a_loop_has_samples_of_its_own():
    seen = watch_loop(EXERCISES["accumulate"].solution, twice((1, 3), 2))
    assert [row.tolist() for row in seen["updates"].rows] == [[0.25] * 4 + [0.0] * 4, [0.0] * 4 + [0.25] * 4]
    assert seen["updates"].call == [0, 1]


def test_weights_and_memory_agree_within_their_limits_and_say_how_they_differ():
    right, near = (Weights({"w": torch.ones(2, dtype=torch.float64) * factor}) for factor in (1, 1 + 2e-5))
    assert right.agrees(right, 0.0)
    assert not near.agrees(right, 1e-6)
    assert near.difference(right) == ("", "w ends up 2e-05 off")
    assert Memory(17).agrees(Memory(10), 0.0)
    assert not Memory(19).agrees(Memory(10), 0.0)
    assert Memory(19).difference(Memory(10))[0] == "held-graphs"
