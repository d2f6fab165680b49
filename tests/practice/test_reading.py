"""Ledgers to be read: the loops in the notebook are those of the judge, and no two of them make the same record."""

import ast
import re
from itertools import combinations

from course import NOTEBOOKS

from course_utils.practice.exercises import nb04_read_the_ledger
from course_utils.practice.reading import _difference, riddle

RIDDLE = riddle("read_the_ledger")


def functions(source):
    return {node.name: ast.unparse(node) for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def test_the_notebook_shows_the_loops_that_its_judge_runs():
    with open(nb04_read_the_ledger.__file__, encoding="utf-8") as file:
        judged = {name: text for name, text in functions(file.read()).items() if name.startswith("loop_")}
    (shown,) = re.findall(r"```python\n(def loop_a\(.*?)```", NOTEBOOKS["04_accumulation"].prose, flags=re.S)
    assert functions(shown) == judged
    assert sorted(judged) == [f"loop_{letter.lower()}" for letter in RIDDLE.loops]


def test_no_two_loops_make_the_same_record():
    for one, other in combinations(RIDDLE.loops, 2):
        assert _difference(RIDDLE.trace(one), RIDDLE.trace(other)), (one, other)
    assert _difference(RIDDLE.trace("A"), RIDDLE.trace("A")) is None


def test_a_figure_is_drawn_from_a_record_and_does_not_say_whose_it_is():
    figure = RIDDLE.figure(1)
    words = " ".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))
    assert "Ledger 1" in words
    assert "loop" not in words.replace("training loop", "")


def test_every_rise_is_the_gradient_of_a_micro_batch_as_its_loop_divides_it():
    def heights(letter):
        return [event.norm for event in RIDDLE.trace(letter).events if event.kind in ("backward", "step")]

    assert heights("A") == [0.25, 0.5, 0.75, 1, 1] * 2
    assert heights("D") == [0.25, 0.5, 0.75, 1, 1, 1.25, 1.5, 1.75, 2, 2]
