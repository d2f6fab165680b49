"""The solutions of the exercises, as learners read them: what cells tagged `solution` define."""

import ast
import linecache
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from course import NOTEBOOKS
from notebooks import Notebook


class Solution(NamedTuple):
    exercise: str
    notebook: str
    answer: Any


LIVE = {"own_script"}  # answers that only a running notebook has


@cache
def solutions() -> list[Solution]:
    """Every answer that a solution's cell passes to `check`, in the order of the notebooks."""
    return [solution for notebook in NOTEBOOKS.values() for solution in _of(notebook)]


def solution(exercise: str) -> Any:
    """The answer that solves an exercise."""
    return next(found.answer for found in solutions() if found.exercise == exercise)


def _of(notebook: Notebook) -> Iterator[Solution]:
    """A solution may use what the notebook imports or defines before it, and nothing else."""
    namespace: dict = {}
    for k, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        file = f"<{notebook.name}, cell {k}>"
        linecache.cache[file] = (len(cell.source), None, cell.source.splitlines(keepends=True), file)
        body = ast.parse(cell.source).body
        for node in filter(_defines, body):
            with suppress(NameError):  # a definition that needs a result of the notebook
                exec(compile(ast.Module([node], []), file, "exec"), namespace)
        if "solution" in cell.metadata.get("tags", []):
            for exercise, name in _checked(body):
                if exercise not in LIVE:
                    yield Solution(exercise, notebook.name, namespace[name])


def _defines(node: ast.stmt) -> bool:
    constant = ast.Constant | ast.UnaryOp | ast.USub | ast.Tuple | ast.Dict | ast.Load
    return isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef) or (
        isinstance(node, ast.Assign) and all(isinstance(part, constant) for part in ast.walk(node.value))
    )


def _checked(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """What calls of `check("exercise", answer, ...)` check."""
    for node in ast.walk(ast.Module(body, [])):
        match node:
            case ast.Call(ast.Name("check"), [ast.Constant(str(exercise)), ast.Name(name), *_]):
                yield exercise, name
