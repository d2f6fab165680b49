"""Find the bug: the fix of the loop that was given counts, and no other answer."""

import ast
import linecache

import pytest
from answers import RIGHT
from course import NOTEBOOKS
from solutions import solution

from course_utils.practice.hunts import given_in, is_fix, is_the_notebooks_solution, lines_of
from course_utils.publish.notebook import tags


def function_in(source, file):
    """The last function that code defines; it may use what is not there."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    namespace: dict = {}
    exec(compile(ast.Module(functions[-1:], []), file, "exec"), namespace)
    return namespace[functions[-1].name]


HUNTS = []
for _notebook in NOTEBOOKS.values():
    for _cell, _next in zip(_notebook.cells, _notebook.cells[1:], strict=False):
        if "find-the-bug" in tags(_cell):
            _exercise = _cell.source.rpartition('check("')[2].partition('"')[0]
            _given, _fixed = (function_in(c.source, f"<{_notebook.name}, {c.id}>") for c in (_cell, _next))
            HUNTS.append(pytest.param(_notebook.name, _exercise, _given, _fixed, id=_notebook.name))
each_hunt = pytest.mark.parametrize(("notebook", "exercise", "given", "fixed"), HUNTS)


@each_hunt
def test_the_fix_of_the_given_loop_counts(notebook, exercise, given, fixed):
    assert lines_of(given)
    assert lines_of(fixed)
    assert is_fix(lines_of(fixed), lines_of(given))


@each_hunt
def test_a_notebook_beside_the_kernel_says_what_was_given(notebook, exercise, given, fixed, monkeypatch):
    monkeypatch.chdir(NOTEBOOKS[notebook].path.parent)
    assert given_in(notebook, exercise) == lines_of(fixed)
    assert is_fix(lines_of(given), given_in(notebook, exercise))


def test_most_answers_to_the_exercise_before_do_not_count():
    """Those that are nearly the given loop do, unless the learner has just passed the exercise with them."""
    taken = {}
    for notebook, exercise, given, _ in (hunt.values for hunt in HUNTS):
        answers = [answer for answer in RIGHT[exercise] if lines_of(answer)]
        taken[notebook] = sum(is_fix(lines_of(answer), lines_of(given)) for answer in answers) / len(answers)
    assert max(taken.values()) < 0.5, taken


def test_comments_layout_and_the_docstring_are_no_lines():
    def plain(a, b):
        total = a + b
        return total * 2

    def decorated(a, b):
        """Twice the sum."""
        total = (
            a + b  # added
        )

        return total * 2

    assert lines_of(plain) == lines_of(decorated) == ["total = a + b", "return total * 2"]


@pytest.mark.parametrize("answer", [None, 3, print, dict, lambda: 0, object(), [1], "text"])
def test_what_has_no_source_has_no_lines_and_is_no_solution(answer):
    assert lines_of(answer) == []
    assert not is_the_notebooks_solution(answer)


def test_no_file_or_another_one_says_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert given_in("02_zeroing", "train") == []
    (tmp_path / "02_zeroing.ipynb").write_text("{")
    assert given_in("02_zeroing", "train") == []


def test_the_solutions_of_the_notebooks_are_known():
    assert is_the_notebooks_solution(solution("train"))
    assert not any(is_the_notebooks_solution(answer) for answers in RIGHT.values() for answer in answers)
