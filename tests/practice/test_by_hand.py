"""Numbers on paper: the judge runs the notebook's program, and a slip explains the number that it gives."""

import re

import pytest
import torch

from course import NOTEBOOKS
from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises.nb01_on_paper import graph
from course_utils.practice.judging import Mistake

WANT = {"w": 7.0, "x": 3.0, "a": None}
SLIPS = [
    Slip("first", "only w", {"w": 6.0}),
    Slip("both", "w and x", {"w": 6.0, "x": 2.0}),
    Slip("any", "a is anything", {"a": lambda got: True}),
]


def mistake(**answer):
    with pytest.raises(Mistake) as caught:
        judge_numbers(answer, WANT, SLIPS)
    return caught.value.verdict


def test_correct_numbers_pass():
    judge_numbers({"w": 7, "x": torch.tensor(3.0), "a": None}, WANT, SLIPS)


def test_the_slip_that_explains_most_is_named_and_the_earlier_of_equals():
    assert mistake(w=6, x=3, a=None).bug == "first"
    assert mistake(w=6, x=2, a=None).message == "w = 6 and x = 2: w and x."
    assert mistake(w=6, x=99, a=None).bug == "first"
    assert mistake(w=7, x=3, a=5).bug == "any"


def test_what_no_slip_explains_is_a_wrong_value_and_what_is_missing_is_named():
    assert mistake(w=99, x=3, a=None).message == "w = 99."
    assert mistake(w=7, x=...).message == "nothing is written for x, a yet."
    assert mistake().bug == "not-attempted"
    assert mistake(w=7, x=3, a=None, b=1).bug == "wrong-type"


def test_the_judges_graph_is_the_program_that_the_notebook_shows():
    (program,) = re.findall(r"```python\n(w = .*?)```", NOTEBOOKS["01_gradients"].prose, flags=re.S)
    names = {"torch": torch}
    exec(program, names)
    assert {"w.grad": names["w"].grad.item(), "x.grad": names["x"].grad.item()} == {
        key: value for key, value in graph().items() if value is not None
    }
    assert not names["a"].is_leaf
