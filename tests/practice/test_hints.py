"""Every name that a judge can give to a bug has a hint: those that are written in the code, and those that come out."""

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from answers import WRONG

from course_utils import practice
from course_utils.practice.exercises import EXERCISES
from course_utils.practice.hints import HINTS

ROOM = Path(practice.__file__).parent
MODULES = sorted(ROOM.rglob("*.py"))
NAME = re.compile(r"[a-z]+(-[a-z]+)*")


@cache
def names_in(source: str) -> set[str]:
    """The names of bugs that code holds: what it calls Mistake or Verdict with, and what stands beside a sentence."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(ast.Name("Mistake" | "Verdict"), [name, *_]):
                found |= _constants(name)
            case ast.Tuple(entries) if any(map(_is_a_sentence, entries)):
                for entry in entries[:-1]:
                    found |= _constants(entry)
            case ast.Assign([ast.Name("bug")], value):
                found |= _constants(value)
            case ast.Assign([ast.Tuple([ast.Name("bug"), *_])], ast.Tuple([value, *_])):
                found |= _constants(value)
    return {name for name in found if NAME.fullmatch(name)}


def _constants(node: ast.expr) -> set[str]:
    match node:
        case ast.Constant(str(name)):
            return {name}
        case ast.IfExp(_, one, other):
            return _constants(one) | _constants(other)
    return set()


def _is_a_sentence(node: ast.expr) -> bool:
    """Whether it can be a hint: a text of several words, or a variable that holds one."""
    return (
        isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value)
        or (isinstance(node, ast.Name) and node.id in ("hint", "empty", "message", "assigned"))
    )


@pytest.mark.parametrize("path", MODULES, ids=[path.stem for path in MODULES])
def test_every_name_in_the_code_of_a_judge_has_a_hint(path):
    here = {
        bug
        for exercise in EXERCISES.values()
        if exercise.judge.__module__.endswith(f".{path.stem}") or path.parent == ROOM  # of several notebooks
        for bug in exercise.hints
    }
    assert names_in(path.read_text(encoding="utf-8")) <= HINTS.keys() | here


@pytest.mark.parametrize("exercise", EXERCISES)
def test_every_name_that_a_wrong_answer_gets_has_a_hint(exercise):
    for wrong in WRONG[exercise]:
        assert EXERCISES[exercise].hint(wrong.bug), wrong.bug


@pytest.mark.parametrize("exercise", EXERCISES)
def test_an_exercises_own_hints_are_for_names_that_its_judges_give(exercise):
    """One that has been renamed would never be shown."""
    judges = [import_module(EXERCISES[exercise].judge.__module__), *(path for path in MODULES if path.parent == ROOM)]
    sources = [Path(getattr(module, "__file__", module)).read_text(encoding="utf-8") for module in judges]
    given = set().union(*map(names_in, sources)) | {wrong.bug for wrong in WRONG[exercise]}
    assert EXERCISES[exercise].hints.keys() <= given
