"""Room to write in an exercise, where its `...` stands and as much as the solution takes by hand."""

import ast
import re
from math import ceil
from textwrap import indent

from course_utils.publish.handouts.syntax import parse

BLANK = "\u2581"  # the template draws one alone on its line as a line to write on, and several as a blank of that width
HAND = 48  # letters that somebody writes by hand across a page
_LEAST, _LETTERS = 3, 12  # lines; the width of a blank
_DOTS = re.compile(r"^( *)(?:return )?(?:\.\.\.|pass|None)(?= *(?:#|$)) *(#.*)?$", flags=re.M)


def with_room(stub: str, solution: str, most: int = 99) -> tuple[str, int]:
    """A stub with lines to write on, and how many of them follow below it.

    Args:
        stub: The code of an exercise.
        solution: The code of its solution, or "".
        most: Lines to write on, at most.

    >>> print(with_room("def f(a):\\n    ...  # add\\n\\n\\n_ = check('f', f)", "def f(a):\\n    return a + 1")[0])
    def f(a):
        # add
        ▁
        ▁
        ▁
    >>> print(*with_room("x = {'a': ...}\\n_ = check('x', x)", "# 2 / 2\\nx = {'a': 1}"), sep="\\n")
    x = {
        "a": ▁▁▁▁▁▁▁▁▁▁▁▁,
    }
    3
    """
    stub = re.sub(r"\n+^_ = \w+\(.*\Z", "", stub, flags=re.M | re.S)  # on paper nothing checks it
    places = len(_DOTS.findall(stub))
    if places:
        lines = max(_LEAST, ceil(min(most, _by_hand(stub, solution)) / places))
        return _DOTS.sub(lambda dots: _ruled(*dots.groups(), lines), stub), 0
    if stub != (blank := _blanks(stub)):
        working = max(_LEAST, sum("#" in line for line in solution.splitlines()))  # a line for each reason
        return blank, 0 if f"{BLANK}\n" in blank else min(most, working)
    return stub, min(most, max(_LEAST, 1 + _by_hand(stub, solution)))


def _by_hand(stub: str, solution: str) -> int:
    """The lines that the solution adds, as somebody writes them."""
    own = next((block for block in stub.split("\n\n\n") if _DOTS.search(block)), stub)
    given = {line.strip() for line in own.splitlines()}
    lines = [line.partition("  #")[0].strip() for line in re.split(r"^assert ", solution, flags=re.M)[0].splitlines()]
    return sum(ceil(len(line) / HAND) for line in lines if line not in given and not line.startswith(("#", "def ")))


def _ruled(margin: str, comment: str, lines: int) -> str:
    return indent("\n".join([comment] * bool(comment) + [BLANK] * lines), margin)


def _blanks(stub: str) -> str:
    """The values that an answer names, each as a blank, and those of a dictionary one below the other."""
    for statement in reversed(parse(stub).body):
        match statement:
            case ast.Assign(value=ast.Dict() as values) | ast.AugAssign(value=ast.Dict() as values):
                a_sentence = isinstance(values.values[0], ast.Constant) and values.values[0].value == ""
                own = f"\n        {BLANK}" * 2 if a_sentence else f" {BLANK * _LETTERS},"
                rows = [f'    "{key.value}":{own}' for key in values.keys]
                stub = _replaced(stub, values, "\n".join(["{", *rows, "}"]))
            case ast.Assign(value=ast.Constant(value="" | None) as value):
                stub = _replaced(stub, value, BLANK * 2 * _LETTERS)
    return stub


def _replaced(source: str, node: ast.expr, text: str) -> str:
    lines = source.split("\n")  # of ASCII, in which ast's columns are those of the text
    head, tail = lines[node.lineno - 1][: node.col_offset], lines[node.end_lineno - 1][node.end_col_offset :]
    lines[node.lineno - 1 : node.end_lineno] = [head + text + tail]
    return "\n".join(lines)
