"""Lines of the script's source: the division before a backward call, the condition of a step, the loops around both."""

import ast
import linecache
from collections.abc import Callable, Iterable
from functools import lru_cache

from gradaudit.callsite import Place

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OF_A_LOSS = ("loss-scale", "token-weights")  # rules about what a loss is divided by


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


# Causes


def cause(where: str, rule: str) -> tuple[int, int, int]:
    """The line to mark for what a rule found, and from which column to which: a loss's division, or the statement."""
    tree, line = place(where)
    text = linecache.getline(where.rpartition(":")[0], line)
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    statement = _statement(tree, line, getattr(where, "column", 0))
    if statement is None:
        return line, start, end
    division = _division(statement) if rule in _OF_A_LOSS else None
    if isinstance(division, ast.BinOp) and division.left.end_lineno == division.end_lineno:
        line, text = division.end_lineno, linecache.getline(where.rpartition(":")[0], division.end_lineno)
        start = text.index("/", _column(text, division.left.end_col_offset))
        return line, start, _column(text, division.end_col_offset)
    start = max(start, _column(text, statement.col_offset)) if line == statement.lineno else start
    return line, start, _column(text, statement.end_col_offset) if line == statement.end_lineno else end


def _statement(tree: ast.AST | None, line: int, column: int) -> ast.stmt | None:
    """The statement at a place, if it isn't one around others, as where the line is the test of an if.

    Of several on a line it is the last, if the column is 0, which stands for none.
    """
    nodes = [node for node in ast.walk(tree or ast.Module([], [])) if isinstance(node, ast.stmt)]
    nodes = [node for node in nodes if node.lineno <= line <= node.end_lineno]
    if column:
        nodes = [n for n in nodes if (n.lineno, n.col_offset) <= (line, column) <= (n.end_lineno, n.end_col_offset)]
    return None if not nodes or hasattr(nodes[-1], "body") else nodes[-1]


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


def division_of(call: Place) -> Place:
    """Where what a backward call is called on was divided last, in the function of the call; else the call itself."""
    return _computed(call, _division)


def loss_of(call: Place) -> Place:
    """Where what a backward call is called on was computed, in the function of the call; else the call itself."""
    return _computed(call, lambda _: True)


def _computed(call: Place, counts: Callable[[ast.stmt], object]) -> Place:
    tree, line = place(call)
    called = _statement(tree, line, call.column)
    if called is None or _division(called):
        return call
    lines = _assignments(_surroundings(tree, line)[0], line, _goes_backward_from(called), counts)
    return _at(call, max([each for each in lines if each < line], default=line))


def _assignments(function: ast.AST, line: int, names: set[str], counts: Callable[[ast.stmt], object]) -> list[int]:
    """The lines of the statements that assign any of these variables, if they count.

    What is in a branch of its own may not run: it counts only if all is.
    """
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and not hasattr(node, "body")]
    found = [node for node in nodes if names & _targets(node) and counts(node)]
    branches = [node for node in ast.walk(function) if isinstance(node, ast.If)]
    elsewhere = [b for b in branches if not b.lineno <= line <= b.end_lineno]
    surely = [node for node in found if not any(b.lineno <= node.lineno <= b.end_lineno for b in elsewhere)]
    return [node.lineno for node in surely or found]


def _goes_backward_from(statement: ast.stmt) -> set[str]:
    """The names of what backward is called on, itself or through a scaler."""
    calls = [call for call in _calls([statement]) if _name(call.func).endswith(("backward", "scale"))]
    parts = [part for call in calls for part in call.args or [getattr(call.func, "value", None)]]
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _targets(statement: ast.stmt) -> set[str]:
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return _names([target for target in targets if target is not None])


def condition_of(step: Place) -> Place | None:
    """The line of the condition around a step that counts by a remainder, such as `if (i + 1) % n == 0:`."""
    tests = [test for test in _tests_around(*place(step)) if "%" in ast.unparse(test)]
    return _at(step, tests[-1].lineno) if tests else None


def _tests_around(tree: ast.Module | None, line: int) -> list[ast.expr]:
    """The tests that decide whether a line runs, the outermost first."""
    found = [node for node in ast.walk(tree or ast.Module([], [])) if isinstance(node, ast.If)]
    return [node.test for node in found if node.body[0].lineno <= line <= node.body[-1].end_lineno]


def _at(known: Place, line: int) -> Place:
    """Another line of the same file."""
    found = Place(f"{known.rpartition(':')[0]}:{line}")
    found.via, found.framework = known.via, known.framework
    return found


def _surroundings(tree: ast.Module, line: int) -> tuple[ast.AST, list[ast.stmt]]:
    """The innermost function that a line belongs to, and the loops of it in whose bodies it stands."""
    node, function, loops = tree, tree, []
    while node is not None:
        if isinstance(node, _FUNCTIONS):
            function, loops = node, []
        elif isinstance(node, _LOOPS) and node.body[0].lineno <= line <= node.body[-1].end_lineno:
            loops.append(node)
        children = (child for child in ast.iter_child_nodes(node) if hasattr(child, "lineno"))
        node = next((child for child in children if child.lineno <= line <= child.end_lineno), None)
    return function, loops


def _names(parts: Iterable[ast.AST]) -> set[str]:
    return {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)}


def _calls(parts: Iterable[ast.AST]) -> list[ast.Call]:
    return [node for part in parts for node in ast.walk(part) if isinstance(node, ast.Call)]


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))
