"""When two results agree, which mistake a difference is named after, and what was seen of a loop."""

import math
import re

import pytest
import torch

from course import NOTEBOOKS
from course_utils.exercises.judging import Mistake, agree, changed, compare, on_paper
from course_utils.exercises.loop import Memory, Weights, twice, watch_loop
from solutions import solution


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


def watch(answer, case):
    return {"first": float(answer(case)), "second": float(answer(10 * case))}


def mistake(answer, **more):
    with pytest.raises(Mistake) as found:
        compare(watch, answer, lambda x: 2 * x + 1, [1.0, 2.0], **more)
    return found.value.verdict


def test_the_first_difference_is_named_after_its_channel_with_the_hint_of_the_exercise():
    compare(watch, lambda x: x + x + 1, lambda x: 2 * x + 1, [1.0, 2.0])
    verdict = mistake(lambda x: x + x)
    assert (verdict.bug, verdict.message) == ("wrong-value", "1.0: first: expected 3, got 2.")
    channels = {"second": ("too-short", "it ends early", "Where does it end?")}
    verdict = mistake(lambda x: 2 * x + 1 + (x == 10), channels=channels)
    assert verdict.bug == "too-short"
    assert verdict.message == "1.0: second: expected 21, got 22: it ends early."
    assert verdict.hint == "Where does it end?"
    assert mistake(lambda x: 0, channels=channels, hints={"wrong-value": "Add."}).hint == "Add."


def wrong_on_paper(**answer):
    with pytest.raises(Mistake) as found:
        on_paper(answer, {"a": 1, "b": 2, "c": None}, ("added", {"a": 3, "b": 4}, "nothing is added", "Add?"))
    return found.value.verdict.bug, found.value.verdict.message


def test_on_paper_a_mistake_is_said_of_the_blanks_that_it_explains_and_of_no_other():
    on_paper({"a": 1, "b": 2, "c": None}, {"a": 1, "b": 2, "c": None})
    assert wrong_on_paper(a=..., b=..., c=...)[0] == "not-attempted"
    assert wrong_on_paper(a=1, b=..., c=None)[0] == "unfinished"
    assert wrong_on_paper(a=3, b=2, c=None) == ("added", "a = 3: nothing is added.")
    assert wrong_on_paper(a=3, b=7, c=None) == ("added", "a = 3: nothing is added. Not right either: b = 7.")
    assert wrong_on_paper(a=8, b=7, c=0) == ("wrong-value", "a = 8 and b = 7 and c = 0 are not right.")
    assert wrong_on_paper(a=1, b=2, c=0) == ("wrong-value", "c = 0 is not right.")


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
    assert changed(now, given()) == ""
    now[1][1].add_(1)
    assert changed(now, given()) == "your function changed it in place"
    assert "has 1 entries afterwards instead of 2" in changed(now[:1], given())
    assert changed([(None, None), now[1]], given())


def test_each_call_of_a_loop_has_samples_of_its_own():
    seen = watch_loop(solution("accumulate"), twice((2, 2), 2))
    assert [row.tolist() for row in seen["updates"].rows] == [[0.25] * 4 + [0.0] * 4, [0.0] * 4 + [0.25] * 4]
    assert seen["updates"].call == [0, 1]


def test_weights_and_memory_agree_within_their_limits_and_say_how_they_differ():
    right, near = (Weights({"w": torch.ones(2, dtype=torch.float64) * factor}) for factor in (1, 1 + 2e-5))
    right.compare(right)
    with pytest.raises(Mistake, match="w ends up 2e-05 off"):
        near.compare(right)
    Memory(17).compare(Memory(10))
    with pytest.raises(Mistake, match="19 bytes are kept"):
        Memory(19).compare(Memory(10))
