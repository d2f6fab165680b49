"""Where a listing may go on on the next page: a page never shows the stub of one.

Code breaks at its blank lines, and otherwise between statements that stand far enough from both ends of the box.
"""

import ast

from course_utils.publish.handouts.room import BLANK
from course_utils.publish.handouts.syntax import parse

WHOLE = 12  # lines that no page break parts, of code; and of what a program prints,
PRINTED = 9  # since the end of the code stays with it
FLOOR = 5  # lines that stand on either side of a break

Lines = tuple[int, int]  # the first and the last line of a group that stays together, from 1


def groups(source: str, kind: str) -> list[Lines]:
    """The groups of lines that stay together, in order; blank lines between two groups belong to neither.

    >>> groups("a = 1\\n\\nb = 2", "python")
    [(1, 3)]
    >>> groups("\\n".join(["row"] * 14), "output")
    [(1, 5), (6, 6), (7, 7), (8, 8), (9, 9), (10, 14)]
    """
    lines = source.split("\n")
    if len(lines) <= (PRINTED if kind == "output" else WHOLE):
        return [(1, len(lines))]
    found = _between_blank_lines(lines)
    if kind == "python":
        starts = _statements(source)
        return _no_stubs([piece for group in found for piece in _split(group, starts)])
    # What a program prints may break at each line, and what somebody writes in, between two lines to write on.
    ends = [n for n, line in enumerate(lines, start=1) if kind == "output" or _are_ruled(lines[n - 1 : n + 1])]
    return _no_stubs([piece for group in found for piece in _cut(group, ends)])


def _are_ruled(lines: list[str]) -> bool:
    return len(lines) == 2 and all(line.strip() == BLANK for line in lines)


def _cut(group: Lines, ends: list[int]) -> list[Lines]:
    """A group, parted after some of its lines."""
    first, last = group
    inner = [end for end in ends if first <= end < last]
    return list(zip([first, *(end + 1 for end in inner)], [*inner, last], strict=True))


def _between_blank_lines(lines: list[str]) -> list[Lines]:
    found, first = [], None  # a line that opens a block stays with it
    for number, line in enumerate([*lines, ""], start=1):
        if line.strip() and first is None:
            first = number
        if not line.strip() and first is not None and not (lines[number - 2].endswith(":") and number < len(lines)):
            found.append((first, number - 1))
            first = None
    return found


def _statements(source: str) -> dict[int, int]:
    """The lines on which a statement, or the comment above it, begins within a block, each with its indentation."""
    try:
        tree = parse(source)
    except SyntaxError:  # not Python alone
        return {}
    lines = source.split("\n")
    starts = {}
    for node in ast.walk(tree):
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            for statement in block[1:] if isinstance(block, list) else []:
                decorators = getattr(statement, "decorator_list", [])
                line = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
                while line > 1 and lines[line - 2].lstrip().startswith("#"):
                    line -= 1
                starts[line] = statement.col_offset
    return starts


def _split(group: Lines, starts: dict[int, int]) -> list[Lines]:
    """A group that is too long, parted where the code is least indented, and there near its middle."""
    first, last = group
    places = [line for line in range(first + FLOOR, last - FLOOR + 2) if line in starts]
    if last - first < WHOLE or not places:
        return [group]
    middle = (first + last + 1) / 2
    place = min(places, key=lambda line: (starts[line], abs(line - middle)))
    return [*_split((first, place - 1), starts), *_split((place, last), starts)]


def _no_stubs(found: list[Lines]) -> list[Lines]:
    """The groups, with the first and the last made as long as what may stand alone on a page."""
    while len(found) > 1 and found[0][1] - found[0][0] + 1 < FLOOR:
        found = [(found[0][0], found[1][1]), *found[2:]]
    while len(found) > 1 and found[-1][1] - found[-1][0] + 1 < FLOOR:
        found = [*found[:-2], (found[-2][0], found[-1][1])]
    return found
