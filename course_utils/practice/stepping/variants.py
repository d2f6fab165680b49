"""The small edits of a loop that a learner would like to try: zero_grad() left out, moved or repeated, no division.

An edit changes the text of the loop, and nothing else. It is offered only where the loop has something to edit.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from course_utils.recording.stepping import Loop, Steps

AS_WRITTEN = "as written"
FORGOTTEN = "without zero_grad()"
TOO_EARLY = "zero_grad() before step()"
TOO_OFTEN = "zero_grad() after every micro-batch"
NOT_DIVIDED = "without the division"


class Edit(NamedTuple):
    """Text that replaces a part of one line; both columns are counted in characters, from 0."""

    line: int
    start: int
    end: int
    text: str


def variants(steps: Steps) -> dict[str, Loop]:
    """The edits that apply to a loop, by name, "as written" first.

    Args:
        steps: A record of the loop as it is written: it says on which lines the steps and the backward calls are.
    """
    loop = steps.loop
    found = {AS_WRITTEN: loop}
    if not loop.plain:  # a decorator would have to be applied again
        return found
    source = _Source(loop)
    steps_of, backwards = (source.at(steps, kind) for kind in ("step", "backward"))
    zeros = [node for node in source.statements if _is_zeroing(node)]
    edits: dict[str, list[Edit]] = {}
    if zeros:
        edits[FORGOTTEN] = [source.without(node) for node in zeros]
    if steps_of and len({ast.unparse(node) for node in zeros}) == 1:
        zeroing = ast.unparse(zeros[0])
        moved = [source.without(node, "was here") for node in zeros]
        edits[TOO_EARLY] = moved + [source.before(node, zeroing) for node in steps_of]
        if backwards and not any(source.beside(one, other) for one in backwards for other in steps_of):
            edits[TOO_OFTEN] = [source.after(node, zeroing) for node in backwards]
    if divided := source.division(backwards):
        edits[NOT_DIVIDED] = divided
    for name, some in edits.items():
        if None not in some:
            lines = source.edited(some)
            if lines is not None and all(_code(lines) != _code(other.lines) for other in found.values()):
                found[name] = Loop.changed(loop, lines)
    return found


def _is_zeroing(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="zero_grad"))):
            return True
    return False


def _factors(node: ast.expr) -> Iterator[ast.expr]:
    """The parts of an expression that its value is a multiple of: not what a model or a loss function is called with.

    >>> [ast.unparse(one) for one in _factors(ast.parse("scaler.scale(f(x / 2) / n).backward()").body[0].value)][-2:]
    ['f(x / 2)', 'n']
    """
    yield node
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=arguments):
            for inner in [value, *(arguments if name in ("scale", "backward") else [])]:
                yield from _factors(inner)
        case ast.BinOp(left=left, right=right):
            yield from _factors(left)
            yield from _factors(right)


def _code(lines: list[str]) -> str:
    """What Python reads of some lines: without comments, and without lines that do nothing."""
    tree = ast.parse("\n".join(lines))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and len(body) > 1:
            node.body = [one for one in body if not isinstance(one, ast.Pass)] or body[:1]
    return ast.dump(tree)


class _Source:
    """A loop's statements, and the edits of them."""

    def __init__(self, loop: Loop):
        self.loop, self.lines = loop, loop.lines
        self.statements = [node for node in ast.walk(loop.tree) if isinstance(node, ast.stmt)]
        parts = ("body", "orelse", "finalbody")
        self.bodies = [getattr(node, part) for node in self.statements for part in parts if getattr(node, part, None)]

    def at(self, steps: Steps, kind: str) -> list[ast.stmt]:
        """The statements in which something of this kind happened; of several on a line, the one that calls it."""
        found = []
        for line in sorted({frame.line for frame in steps.frames if frame.kind == kind}):
            here = [node for node in self.statements if node.lineno == line and f".{kind}(" in ast.unparse(node)]
            found += here[-1:] or filter(None, [self.loop.statement(line)])
        return found

    def beside(self, one: ast.stmt, other: ast.stmt) -> bool:
        """Whether two statements are in the same block, so that they run equally often."""
        return one is other or any(one in body and other in body for body in self.bodies)

    def columns(self, node: ast.AST) -> tuple[int, int]:
        """Where a node begins and ends, in characters; Python counts bytes."""
        first, last = (self.lines[number - 1].encode() for number in (node.lineno, node.end_lineno))
        return len(first[: node.col_offset].decode()), len(last[: node.end_col_offset].decode())

    def alone(self, node: ast.stmt) -> bool:
        """Whether a statement has its lines to itself, but for a comment."""
        start, end = self.columns(node)
        after = self.lines[node.end_lineno - 1][end:].strip()
        return not self.lines[node.lineno - 1][:start].strip() and (not after or after.startswith("#"))

    def without(self, node: ast.stmt, why: str = "left out") -> Edit | None:
        if node.lineno != node.end_lineno:
            return None
        start, end = self.columns(node)
        text = self.lines[node.lineno - 1][start:end]
        if not self.alone(node):
            return Edit(node.lineno, start, end, "pass")
        only = any(body == [node] for body in self.bodies)  # a block may not be empty
        line = self.lines[node.lineno - 1]
        return Edit(node.lineno, start, len(line), f"{'pass  ' if only else ''}# {why}: {text}")

    def before(self, node: ast.stmt, text: str) -> Edit:
        start, _ = self.columns(node)
        indent = self.lines[node.lineno - 1][:start]
        if indent.strip():
            return Edit(node.lineno, start, start, f"{text}; ")
        return Edit(node.lineno, start, start, f"{text}  # moved here\n{indent}")

    def after(self, node: ast.stmt, text: str) -> Edit | None:
        if not isinstance(node, ast.Expr | ast.Assign | ast.AugAssign):
            return None
        start, end = self.columns(node)
        if not self.alone(node):
            return Edit(node.end_lineno, end, end, f"; {text}")
        line, indent = self.lines[node.end_lineno - 1], self.lines[node.lineno - 1][:start]
        return Edit(node.end_lineno, len(line), len(line), f"\n{indent}{text}  # added")

    def division(self, backwards: list[ast.stmt]) -> list[Edit | None]:
        """The division of the loss: in the statement that calls backward(), or where its variable gets its value."""
        for statement in backwards:
            names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            sources = [statement]
            for node in self.statements:
                match node:
                    case ast.AugAssign(target=ast.Name(id=name), op=ast.Div()) if name in names:
                        return [self.without(node)]
                    case ast.Assign(targets=[ast.Name(id=name)]) if name in names:
                        sources.append(node)
            for source in (one for one in sources if isinstance(one, ast.Expr | ast.Assign)):
                for node in _factors(source.value):
                    match node:
                        case ast.BinOp(left=ast.Call() | ast.Name(), op=ast.Div()) if node.lineno == node.end_lineno:
                            start, end = self.columns(node)
                            text = ast.get_source_segment("\n".join(self.lines), node.left)
                            return [Edit(node.lineno, start, end, text), *self.comment(node.lineno, "not divided")]
        return []

    def comment(self, line: int, text: str) -> list[Edit]:
        """At the end of a line, if it has no other and is no part of a longer text."""
        whole = self.lines[line - 1]
        alone = any(node.lineno == node.end_lineno == line and self.alone(node) for node in self.statements)
        return [Edit(line, len(whole), len(whole), f"  # {text}")] if alone and "#" not in whole else []

    def edited(self, edits: list[Edit]) -> list[str] | None:
        """The lines after all edits; None if the result is no Python."""
        lines = list(self.lines)
        for line, start, end, text in sorted(edits, key=lambda edit: (edit.line, edit.start), reverse=True):
            lines[line - 1] = lines[line - 1][:start] + text + lines[line - 1][end:]
        lines = "\n".join(lines).splitlines()
        try:
            ast.parse("\n".join(lines))
        except SyntaxError:
            return None
        return lines
