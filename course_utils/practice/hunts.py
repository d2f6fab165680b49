"""Find the bug: whether a loop that passes is the one that was given, with its bug fixed, or another one."""

import ast
import inspect
import json
import textwrap
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

_KEPT = 0.6  # of its lines that a loop must still have when its bug is fixed


def lines_of(answer: Callable) -> list[str]:
    """The lines of a function without its comments and its docstring; none where the source cannot be found."""
    with suppress(Exception):  # an answer can be anything
        function = _function(answer)
        body = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        name = function.__code__.co_name
        return _lines(next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name))
    return []


def is_fix(answer: list[str], given: list[str]) -> bool:
    """Whether most of the lines that were given are still there; of a few lines, all but two, and at least one."""
    kept = (Counter(answer) & Counter(given)).total()
    return not (answer and given) or kept >= max(1, min(_KEPT * len(given), len(given) - 2))


def given_in(notebook: str, exercise: str) -> list[str]:
    """The lines of the fixed loop in a notebook of this folder, whatever the learner has made of the buggy one."""
    with suppress(Exception):  # another file than one of the course
        cells = json.loads(Path(f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
        for hunt, solution in pairwise(cells):
            if "find-the-bug" in hunt["metadata"].get("tags", []) and f'check("{exercise}"' in "".join(hunt["source"]):
                *_, loop = (n for n in ast.parse("".join(solution["source"])).body if isinstance(n, ast.FunctionDef))
                return _lines(loop)
    return []


def is_the_notebooks_solution(answer: object) -> bool:
    """Whether a function comes from a cell that begins with `# Solution`."""
    with suppress(Exception):
        cell, _ = inspect.findsource(_function(answer).__code__)
        comments = []
        for line in cell:
            if not line.startswith("#"):
                break
            comments.append(line.strip())
        return any(line.startswith("# Solution") for line in comments)
    return False


def _function(answer: object) -> Callable:
    """The function that is called in the end."""
    while isinstance(answer, partial):
        answer = answer.func
    answer = inspect.unwrap(answer) if callable(answer) else answer
    if not hasattr(answer, "__code__") and not hasattr(answer, "__func__"):
        raise TypeError("no function of Python's")
    return getattr(answer, "__func__", answer)


def _lines(function: ast.FunctionDef) -> list[str]:
    if ast.get_docstring(function) is not None and len(function.body) > 1:
        function.body = function.body[1:]
    return [line.strip() for statement in function.body for line in ast.unparse(statement).splitlines()]
