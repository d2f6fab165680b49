"""Python's syntax trees for handouts that are made side by side."""

import ast
from threading import Lock

__all__ = ["parse"]

_one_at_a_time = Lock()


def parse(source: str) -> ast.Module:
    """`ast.parse`, one thread at a time.

    Up to 3.11.7, Python counts how deep a tree is in one place for all threads. If the garbage collector lets another
    thread in while a tree is built, one of the two ends with "AST constructor recursion depth mismatch".

    Raises:
        SyntaxError: As `ast.parse` does.

    Source: python/cpython issue 106905.

    >>> parse("a = 1").body[0].targets[0].id
    'a'
    """
    with _one_at_a_time:
        return ast.parse(source)
