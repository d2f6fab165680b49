"""The source of the audited script, as far as rules look into it."""

import ast
import linecache
from functools import lru_cache


def place(text: str) -> tuple[ast.Module | None, int]:
    """The tree of the file of which "file:line" speaks, None if it cannot be read, and the line."""
    file, _, line = text.rpartition(":")
    return (_tree(file, "".join(linecache.getlines(file))), int(line)) if line.isdecimal() else (None, 0)


@lru_cache(maxsize=100)
def _tree(file: str, text: str) -> ast.Module | None:
    """Of a file, whose lines may be others by now, as in a notebook; files with the same text are not the same."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):  # a notebook's cell may hold commands that are no Python
        return None
