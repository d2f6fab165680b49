"""The source of the audited script, as far as rules and the report look into it."""

import ast
import linecache
from functools import lru_cache

_OF_A_LOSS = ("loss-scale", "token-weights")  # rules about what a loss is divided by


def place(text: str) -> tuple[ast.Module | None, int]:
    """The tree of the file of which "file:line" speaks, None if it cannot be read, and the line."""
    file, _, line = text.rpartition(":")
    return (_tree(file, "".join(linecache.getlines(file))), int(line)) if line.isdecimal() else (None, 0)


def cause(where: str, rule: str) -> tuple[int, int, int]:
    """The line to mark for what a rule found, and from which column to which: a loss's division, or the statement."""
    tree, line = place(where)
    text = linecache.getline(where.rpartition(":")[0], line)
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    around = [
        node
        for node in ast.walk(tree or ast.Module([], []))
        if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno
    ]
    if not around or hasattr(around[-1], "body"):  # such as the test of an if
        return line, start, end
    statement = around[-1]
    division = _division(statement) if rule in _OF_A_LOSS else None
    if isinstance(division, ast.BinOp) and division.left.end_lineno == division.end_lineno:
        line, text = division.end_lineno, linecache.getline(where.rpartition(":")[0], division.end_lineno)
        start = text.index("/", _column(text, division.left.end_col_offset))
        return line, start, _column(text, division.end_col_offset)
    start = max(start, _column(text, statement.col_offset)) if line == statement.lineno else start
    return line, start, _column(text, statement.end_col_offset) if line == statement.end_lineno else end


def _division(node: ast.AST) -> ast.AST | None:
    """The outermost division, but none inside what a function gets that neither scales a loss nor goes backward."""
    if isinstance(getattr(node, "op", None), ast.Div):
        return node
    passes = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("scale", "backward"))
    parts = [node.func] if isinstance(node, ast.Call) and not passes else ast.iter_child_nodes(node)
    return next(filter(None, map(_division, parts)), None)


def _column(text: str, offset: int) -> int:
    """That of a character, where Python counts bytes."""
    return len(text.encode()[:offset].decode())


@lru_cache(maxsize=100)
def _tree(file: str, text: str) -> ast.Module | None:
    """Of a file, whose lines may be others by now, as in a notebook; files with the same text are not the same."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):  # a notebook's cell may hold commands that are no Python
        return None
