"""The small edits of a loop that a learner would like to try: zero_grad() left out, moved or repeated, no division.

An edit changes the text of the loop, and nothing else. It is offered only where the loop has something to edit, and
each of the statements in question has a line to itself.
"""

import ast
from collections.abc import Iterator

from course_utils.recording.stepping import Loop, Steps

AS_WRITTEN = "as written"
FORGOTTEN = "without zero_grad()"
TOO_EARLY = "zero_grad() before step()"
TOO_OFTEN = "zero_grad() after every micro-batch"
NOT_DIVIDED = "without the division"


def variants(steps: Steps) -> dict[str, Loop]:
    """The edits that apply to a loop, by name, "as written" first.

    Args:
        steps: A record of the loop as it is written: it says on which lines the steps and the backward calls are.
    """
    loop = steps.loop
    found = {AS_WRITTEN: loop}
    bodies = [body for node in ast.walk(loop.tree) if isinstance(body := getattr(node, "body", None), list)]
    bodies += [node.orelse for node in ast.walk(loop.tree) if getattr(node, "orelse", None)]
    statements = [node for body in bodies for node in body if node is not loop.tree]
    here = {kind: {frame.line for frame in steps.frames if frame.kind == kind} for kind in ("step", "backward")}
    stepping, backwards = ([one for one in statements if one.lineno in here[kind]] for kind in here)
    zeros = [one for one in statements if _is_zeroing(one)]
    touched = [*zeros, *stepping, *backwards]
    lines = [node.lineno for node in statements]
    alone = all(node.lineno == node.end_lineno and lines.count(node.lineno) == 1 for node in touched)
    if loop.tree.decorator_list or loop.code.co_freevars or not alone:  # what is around it would have to be made again
        return found

    def text(node: ast.stmt) -> str:
        return loop.lines[node.lineno - 1].strip()

    def without(node: ast.stmt, why: str = "left out") -> str:
        return f"{'pass  ' if [node] in bodies else ''}# {why}: {text(node)}"  # a block may not be empty

    edits: dict[str, dict[ast.stmt, str]] = {}
    if zeros:
        edits[FORGOTTEN] = {node: without(node) for node in zeros}
    if stepping and len({ast.unparse(node) for node in zeros}) == 1:
        zeroing = ast.unparse(zeros[0])
        edits[TOO_EARLY] = {node: without(node, "was here") for node in zeros}
        edits[TOO_EARLY] |= {node: f"{zeroing}  # moved here\n{text(node)}" for node in stepping}
        if not any(one in body and other in body for body in bodies for one in backwards for other in stepping):
            edits[TOO_OFTEN] = {node: f"{text(node)}\n{zeroing}  # added" for node in backwards}
    for node in [one for one in statements if one.lineno == one.end_lineno]:
        if (division := _division(node, backwards)) is not None:
            whole = ast.get_source_segment("\n".join(loop.lines), division)
            part = ast.get_source_segment("\n".join(loop.lines), division.left)
            edits[NOT_DIVIDED] = {node: f"{text(node).replace(whole, part)}  # not divided"}
    for name, replaced in edits.items():
        new = list(loop.lines)
        for node, put in replaced.items():
            indent = " " * node.col_offset
            new[node.lineno - 1] = "\n".join(indent + line for line in put.split("\n"))
        new = "\n".join(new).split("\n")
        if all(_code(new) != _code(other.lines) for other in found.values()):
            found[name] = loop.changed(new)
    return found


def _is_zeroing(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="zero_grad"))):
            return True
    return False


def _division(node: ast.stmt, backwards: list[ast.stmt]) -> ast.BinOp | None:
    """The division of the loss: in a statement that calls backward(), or where its variable gets its value."""
    names = {one.id for statement in backwards for one in ast.walk(statement) if isinstance(one, ast.Name)}
    match node:
        case ast.Expr(value=value) if node in backwards:
            pass
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in names:
            pass
        case _:
            return None
    return next((one for one in _factors(value) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div)), None)


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
    """What Python reads of some lines: without comments."""
    return ast.dump(ast.parse("\n".join(lines)))
