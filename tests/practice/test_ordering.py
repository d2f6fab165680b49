"""Lines that are put in order: what assembles them."""

import ast
import traceback
from inspect import getsource

import pytest

from course_utils.practice.bench import Mistake
from course_utils.practice.ordering import assemble, letters, require_one_loop

SUM = {"A": "total += number", "B": "for number in numbers:", "C": "total = 0", "D": "return total", "E": "while True:"}


def test_what_comes_after_a_colon_is_inside_and_two_colons_nest():
    assert getsource(assemble("def add(numbers):", SUM, "CBA", {})).splitlines()[-1] == "        total += number"
    nested = ast.parse(getsource(assemble("def add(numbers):", SUM, "CBEA", {})))
    loop = nested.body[0].body[1]
    assert isinstance(loop, ast.For)
    assert isinstance(loop.body[0], ast.While)


def test_an_assembled_function_runs_and_its_lines_stand_in_tracebacks():
    assert assemble("def add(numbers):", SUM, "CBAD", {})([3]) == 3
    with pytest.raises(UnboundLocalError) as caught:
        assemble("def add(numbers):", SUM, "BA", {})([3])
    assert traceback.extract_tb(caught.value.__traceback__)[-1].line == "total += number"


@pytest.mark.parametrize("answer", ["C B A", "cba", "C, B, A", "c-b>a", ["C", "B", "A"], ("cb", "a"), "[C][B]\n[A]"])
def test_letters_are_read_in_whatever_way_they_are_written(answer):
    assert letters(answer, SUM) == "CBA"


@pytest.mark.parametrize(
    ("answer", "bug"), [("", "not-attempted"), ("...", "not-attempted"), ("CBZ", "unknown-line"), ([1], "wrong-type")]
)
def test_what_is_no_order_is_named(answer, bug):
    with pytest.raises(Mistake) as caught:
        letters(answer, SUM)
    assert caught.value.verdict.bug == bug


def test_a_block_without_lines_is_named():
    with pytest.raises(Mistake) as caught:
        assemble("def add(numbers):", SUM, "CB", {})
    assert caught.value.verdict.bug == "empty-block"


def test_the_loops_line_is_there_once():
    for order, bug in (("CA", "no-loop"), ("BABA", "nested-loop")):
        with pytest.raises(Mistake) as caught:
            require_one_loop(order, SUM)
        assert caught.value.verdict.bug == bug


def test_the_line_that_uses_a_name_too_early_is_named_and_none_that_only_holds_its_letters():
    lines = {"A": "optimizer.step()", "B": "if i == 2:", "C": "for i in range(3):"}  # `i` stands in `optimizer`, too
    with pytest.raises(Mistake, match="line B, `if i == 2:`, uses `i` before line C has made it"):
        assemble("def train(optimizer):", lines, "ABCA", {"i": "C"})
