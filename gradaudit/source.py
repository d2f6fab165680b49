"""The source of the audited script, as far as rules look into it."""

import ast
import linecache
from collections.abc import Iterable
from functools import lru_cache
from math import isclose

_LARGE = 1e9  # no weight of a loss; and a whole number may be too large for a float


def place(text: str) -> tuple[ast.Module | None, int]:
    """The tree of the file of which "file:line" speaks, None if it cannot be read, and the line."""
    file, _, line = text.rpartition(":")
    return (_tree(file, "".join(linecache.getlines(file))), int(line)) if line.isdecimal() else (None, 0)


def are_written(values: Iterable[float], places: Iterable[str]) -> bool:
    """Does each of these values stand as a number in the files of these places, or follow from one as 1 - x or x²?"""
    trees = [tree for tree, _ in map(place, dict.fromkeys(places)) if tree is not None]
    written = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    numbers = [float(value) for value in written if type(value) in (int, float) and value < _LARGE]
    known = [each for x in numbers for each in (x, 1 - x, x * x)]
    return all(any(isclose(value, each, rel_tol=1e-6) for each in known) for value in values)


@lru_cache(maxsize=100)
def _tree(file: str, text: str) -> ast.Module | None:
    """Of a file, whose lines may be others by now, as in a notebook; files with the same text are not the same."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):  # a notebook's cell may hold commands that are no Python
        return None
