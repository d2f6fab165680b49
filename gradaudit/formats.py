"""The report of an audit as text."""

import linecache
import re
from itertools import groupby
from textwrap import dedent
from typing import TYPE_CHECKING

from gradaudit.callsite import short, source
from gradaudit.lines import cause
from gradaudit.text import lines_of, paint, printable

if TYPE_CHECKING:
    from gradaudit.report import Report

_MOST_LINES = 5  # of code, beside a finding


def as_text(report: "Report", width: int, colour: bool = False, before: str = "") -> str:
    """The report in lines of at most this width, unless a single word is longer.

    Args:
        report: A complete report.
        width: Columns.
        colour: Whether to mark levels, code and fixes by ANSI colours.
        before: Words before the summary.
    """
    lines = lines_of(before + report.summary(), width)
    for (level, rule, where), same in groupby(report.findings, lambda each: (each.level, each.rule, each.where)):
        head, place = f"{level.upper()} {rule}", printable(short(where))
        fits = len(f"{head}  {place}") <= width
        lines += ["", f"{paint(head, level, colour)}  {place if fits else ''}".rstrip()]
        lines += [] if fits else [f"    {place}"]
        lines += _code(where, level, rule, width, colour)
        for finding in same:
            lines += lines_of(report.sentence(finding), width, "  ")
            fix = lines_of(f"fix: {as_clause(finding.fix)}", width, "  ", "       ") if finding.fix else []
            lines += [paint(line, "fix", colour) for line in fix]
        lines += lines_of(f"more: gradaudit --explain {rule}", width, "  ", "        ")
    return "\n".join([*lines, "", *lines_of(report.conclusion(), width)])


def as_clause(sentence: str) -> str:
    """A sentence as it stands after a colon, if it doesn't begin with a name or an abbreviation."""
    begins = sentence[1:2].islower() or sentence[1:2] == " "
    return (sentence[:1].lower() + sentence[1:] if begins else sentence).rstrip(".")


def _code(where: str, level: str, rule: str, width: int, colour: bool) -> list[str]:
    """Lines of the user's code with a mark below the cause, and the line of the library that it led to."""
    if not source(where):
        return []
    file, _, first = where.rpartition(":")
    marked, start, end = cause(where, rule)
    raw = linecache.getlines(file)
    code = [line.rstrip().expandtabs(4) for line in raw]
    statement = range(max(int(first), marked - _MOST_LINES + 3), marked + 1)
    before, after = range(statement[0] - 2, statement[0]), range(marked + 1, marked + 3)
    filled = [[k for k in each if 0 < k <= len(code) and code[k - 1]] for each in (before, statement, after)]
    numbers = [*filled[0][-1:], *filled[1], *filled[2][:1]]
    shown = dedent("\n".join(code[number - 1] for number in numbers)).split("\n")
    margin = len(code[numbers[0] - 1]) - len(shown[0])
    start, end = (len(raw[marked - 1][:column].expandtabs(4)) - margin for column in (start, end))
    gutter, lines = len(str(numbers[-1])), []
    for number, line in zip(numbers, shown, strict=True):
        line, begins = _cut(line, width - gutter - 5, *((start, end) if number == marked else (0, 0)))
        lines.append(paint(f"  {number:>{gutter}} | {printable(line)}", "code", colour))
        if number == marked:
            mark = "^" * max(1, min(end - start, len(line) - begins))
            lines.append(f"  {'':{gutter}} | {' ' * begins}{paint(mark, level, colour)}")
    via = getattr(where, "via", "")
    return lines + (lines_of(f"via {short(via)}  {source(via)}", width, "  ", "      ") if via else [])


def _cut(line: str, width: int, start: int, end: int) -> tuple[str, int]:
    """As much of a line as fits, in whole words and with what is marked, and where the mark begins in it."""
    words = [word.start() for word in re.finditer(r"\w+|[^\w\s]", line) if word.start() <= start]
    first = next((word for word in words if end - word + 4 <= width), start) if end > width else 0
    line, start = (f"... {line[first:]}", start - first + 4) if first else (line, start)
    if len(line) > width:
        line = re.match(rf".{{0,{width - 4}}}((?<!\w)|(?!\w))", line)[0].rstrip() + " ..."
    return line, start
