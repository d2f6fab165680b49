"""What would answer a prediction, taken out of code and prose for the learner's handout."""

import ast
import re
from collections.abc import Callable

from course_utils.publish.handouts.syntax import parse


def without_assertions(source: str, used_later: str) -> str:
    """A cell's code without its assertions and what they alone use, which say what was measured.

    >>> print(without_assertions("right = [1, 4]\\nfound = look()\\nassert found == right", "show(found)"))
    found = look()
    >>> without_assertions("assert 2 * 2 == 4", "")
    ''
    >>> print(without_assertions("for n, right in {2: 4}.items():\\n    print(n)\\n    assert n * n == right", ""))
    for n, right in {2: ...}.items():
        print(n)
    >>> print(without_assertions("n = 2\\nfor found in looks:\\n    right = n * [4]\\n    assert found == right", "n"))
    n = 2
    """
    kept = _without(source, _statements(source, _is_assertion))

    def is_expected_value(statement: ast.stmt) -> bool:
        match statement:
            case ast.Assign([ast.Name(name)]):
                return len(re.findall(rf"\b{name}\b", kept)) == 1 and not re.search(rf"\b{name}\b", used_later)
        return False

    left = _without(source, _statements(source, lambda s: _is_assertion(s) or is_expected_value(s)))
    return _replaced(left, [(value, value, "...") for value in _expected_in_loops(left)])


def _expected_in_loops(source: str) -> list[ast.expr]:
    """The values of dictionaries over whose items a loop runs, where nothing but assertions has used them."""
    found = []
    for node in ast.walk(parse(source)):
        match node:
            case ast.For(ast.Tuple([_, ast.Name(name)]), ast.Call(ast.Attribute(ast.Dict() as expected, "items"))):
                if len(re.findall(rf"\b{name}\b", source)) == 1:
                    found += expected.values
    return found


def _is_assertion(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assert)


def _statements(source: str, wanted: Callable[[ast.stmt], bool]) -> list[ast.stmt]:
    """The wanted statements, and loops and the like that hold nothing else; a function keeps them."""

    def is_gone(statement: ast.stmt) -> bool:
        match statement:
            case ast.For(body=body, orelse=[]) | ast.If(body=body, orelse=[]) | ast.With(body=body):
                return all(map(is_gone, body))
        return wanted(statement)

    cell, *others = ast.walk(parse(source))
    blocks = [getattr(node, name, None) for node in others for name in ("body", "orelse")]
    blocks = [block for block in blocks if isinstance(block, list)]  # the body of a lambda is none
    blocks = [cell.body, *(block for block in blocks if not all(map(is_gone, block)))]
    return [statement for block in blocks for statement in block if is_gone(statement)]


def _without(source: str, statements: list[ast.stmt]) -> str:
    gone = {line for statement in statements for line in range(statement.lineno, statement.end_lineno + 1)}
    lines = [line for number, line in enumerate(source.splitlines(), start=1) if number not in gone]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).rstrip()


def without_what_answers(source: str, answers: list[str], captions: list[str]) -> str:
    """A cell's code with `...` instead of what is revealed, of captions, and of what it prints beside the answer.

    >>> print(without_what_answers("print('all 8 of them', n)\\nguess.reveal('8' if n else '4')", ["8"], []))
    print(...)
    guess.reveal(...)
    >>> print(without_what_answers("show(draw(a), 'Only one line falls.')", [], ["Only one line falls."]))
    show(draw(a), "...")
    """
    places, left = [], [parse(source)]
    while left:
        node = left.pop()
        match node:
            case ast.Call(ast.Attribute(attr="reveal"), [first, *_]):
                places.append((first, (node.keywords or node.args)[-1], "..."))
            case ast.Call(ast.Name("print"), [first, *_]) if any(says(_strings(node), answer) for answer in answers):
                places.append((first, (node.keywords or node.args)[-1], "..."))
            case ast.Constant(str(text)) if len(text) > 9 and any(text.strip() in caption for caption in captions):
                places.append((node, node, '"..."'))
            case _:
                left += ast.iter_child_nodes(node)
    return _replaced(source, places)


def _strings(node: ast.AST) -> str:
    """All that a piece of code says in words."""
    return " ".join(n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def says(text: str, answer: str) -> bool:
    """Whether a text holds the answer, and not only as a part of another word or number.

    >>> says("momentum 1.0, and", "1.0"), says("in 1.05", "1.0")
    (True, False)
    """
    return bool(re.search(rf"(?<![\w.,]){re.escape(answer)}(?![\w]|[.,]\d)", text))


def _replaced(source: str, places: list[tuple[ast.expr, ast.expr | ast.keyword, str]]) -> str:
    """The code with some of its expressions, each from the start of one node to the end of another, replaced."""
    lines = [line.encode() for line in source.splitlines()]  # as ast counts
    for first, last, text in sorted(places, key=lambda place: (place[0].lineno, place[0].col_offset), reverse=True):
        head, tail = lines[first.lineno - 1][: first.col_offset], lines[last.end_lineno - 1][last.end_col_offset :]
        if text == "..." and not head.strip() and tail.strip() in (b"", b","):  # brackets on lines of their own
            before, after = lines[first.lineno - 2].rstrip(), lines[last.end_lineno].lstrip()
            if before.endswith(b"(") and after.startswith(b")"):
                lines[first.lineno - 2 : last.end_lineno + 1] = [before + text.encode() + after]
                continue
        lines[first.lineno - 1 : last.end_lineno] = [head + text.encode() + tail]
    return b"\n".join(lines).decode()


def split_explanation(prose: str, code_follows: bool) -> tuple[str, str]:
    """What explains an answer, up to the next heading, and the rest. Where none comes, the last paragraph leads on.

    >>> split_explanation("It is 8.\\n\\n## Step 2", True)
    ('It is 8.', '## Step 2')
    >>> split_explanation("It is 8.\\n\\nNow we count.", True)
    ('It is 8.', 'Now we count.')
    """
    without_code = re.sub(r"^```.*?^```", lambda code: " " * len(code[0]), prose, flags=re.M | re.S)
    if heading := re.search(r"^#{2,3} ", without_code, flags=re.M):
        return prose[: heading.start()].strip(), prose[heading.start() :].strip()
    head, gap, last = prose.rpartition("\n\n")
    return (head.strip(), last.strip()) if gap and code_follows and "```" not in prose else (prose.strip(), "")
