"""Small changes to a function's source, one at a time, for the tests that see its judge reject those that matter."""

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator

from course_utils.practice.exercises import judge

ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
ORDER = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
IDENTITY = (ast.Is, ast.IsNot)


def assert_mutations_are_judged_by_their_results(
    exercise: str, reference: Callable, changes_a_result: Callable[[Callable], bool], at_least: int = 3
) -> None:
    """Each mutant of a right answer is rejected if and only if it changes a result, of at least so many.

    One that holds graphs longer than it must has the right results and is rejected all the same.
    """
    tried, slipped, refused = 0, [], []
    for what, mutant in mutants(reference):
        tried += 1
        verdict, wrong = judge(exercise, mutant), changes_a_result(mutant)
        if verdict.passed and wrong:
            slipped.append(what)
        if not verdict.passed and not wrong and verdict.bug != "held-graphs":
            refused.append(f"{verdict}\n{what}")
    assert tried >= at_least
    assert not slipped, "wrong, but accepted:\n\n" + "\n\n".join(slipped)
    assert not refused, "right, but rejected:\n\n" + "\n\n".join(refused)


def mutants(function: Callable) -> Iterator[tuple[str, Callable]]:
    """Every function that one small change to the source makes, with what was changed and its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    seen = {ast.unparse(tree)}
    for place, node in enumerate(ast.walk(tree)):
        for change, edit in _edits(node):
            mutant = copy.deepcopy(tree)
            edit(list(ast.walk(mutant))[place])
            source = ast.unparse(ast.fix_missing_locations(mutant))
            if source not in seen:
                seen.add(source)
                namespace = dict(function.__globals__)
                try:
                    code = compile(mutant, f"<{change}>", "exec")
                except SyntaxError:  # a `continue` that has left its loop
                    continue
                exec(code, namespace)
                yield f"{change}:\n{source}", namespace[function.__name__]


def _edits(node: ast.AST) -> Iterator[tuple[str, Callable]]:
    if isinstance(node, ast.FunctionDef | ast.For | ast.If):
        for i, child in enumerate(node.body):
            yield "a statement deleted", lambda n, i=i: _put(n.body, i, [])
            if isinstance(child, ast.AugAssign):
                plain = ast.Assign([child.target], child.value)
                yield "assigned instead of added", lambda n, i=i, plain=plain: _put(n.body, i, [plain])
            if i:
                yield "two neighbours swapped", lambda n, i=i: n.body.insert(i, n.body.pop(i - 1))
            if isinstance(child, ast.For | ast.If):
                for j in range(len(child.body)):
                    yield "a statement moved out, before", lambda n, i=i, j=j: n.body.insert(i, _take(n.body[i], j))
                    yield "a statement moved out, after", lambda n, i=i, j=j: n.body.insert(i + 1, _take(n.body[i], j))
                for k in (i - 1, i + 1):
                    if 0 <= k < len(node.body):
                        yield "a statement moved in, to the top", lambda n, i=i, k=k: _move(n.body, k, i, top=True)
                        yield "a statement moved in, to the end", lambda n, i=i, k=k: _move(n.body, k, i, top=False)
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "a constant inverted", lambda n: setattr(n, "value", not n.value)
        elif isinstance(node.value, int | float):
            for step in (1, -1):
                yield "a constant changed", lambda n, step=step: setattr(n, "value", n.value + step)
    if isinstance(node, ast.BinOp | ast.AugAssign):
        for operator in ARITHMETIC:
            yield "an operator changed", lambda n, operator=operator: setattr(n, "op", operator())
    if isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield "and / or exchanged", lambda n: setattr(n, "op", other())
    if isinstance(node, ast.Compare):
        for operator in ORDER if isinstance(node.ops[0], ORDER) else IDENTITY:
            yield "a comparison changed", lambda n, operator=operator: n.ops.__setitem__(0, operator())
    if isinstance(node, ast.UnaryOp):
        other = {ast.Not: ast.Not, ast.USub: ast.UAdd}[type(node.op)]
        yield "a sign inverted", lambda n: setattr(n, "operand", ast.UnaryOp(other(), n.operand))


def _put(body: list, i: int, statements: list) -> None:
    body[i : i + 1] = statements
    if not body:
        body.append(ast.Pass())


def _take(block: ast.AST, j: int) -> ast.AST:
    statement = block.body[j]
    _put(block.body, j, [])
    return statement


def _move(body: list, k: int, i: int, top: bool) -> None:
    block, statement = body[i], body.pop(k)
    block.body.insert(0 if top else len(block.body), statement)
