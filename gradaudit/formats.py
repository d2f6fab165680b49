"""The formats of a report: text for people, and lines, annotations on GitHub, SARIF and JSON for other tools."""

import json
import linecache
import os
import re
from itertools import groupby
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING
from urllib.parse import quote

from gradaudit.callsite import cell_of, from_here, short, source
from gradaudit.lines import cause
from gradaudit.rules import RULES
from gradaudit.rules.rule import Finding
from gradaudit.text import WIDTH, lines_of, paint, printable

if TYPE_CHECKING:
    from gradaudit.report import Report

_MOST_LINES = 5  # of code, beside a finding
_IN_SARIF = {"error": "error", "advice": "note", "undecided": "warning"}  # on GitHub, a notice


def formatted(report: "Report", how: str, before: str = "", script_exit: int = 0) -> str:
    """The report in one of the formats that `--output-format` takes.

    Args:
        report: A complete report.
        how: The format's name.
        before: Words before the summary, or before the last line.
        script_exit: The script's exit status.
    """
    if how == "json":
        return json.dumps({**report.as_dict(), "script_exit": script_exit}, indent=2)
    if how == "sarif":
        return json.dumps(_sarif(report), indent=2)
    if how == "text":
        return as_text(report, WIDTH, before=before)
    line = concise if how == "concise" else _annotation
    return "\n".join([*(line(report, finding) for finding in report.findings), before + report.conclusion()])


def concise(report: "Report", finding: Finding) -> str:
    """One line, as compilers and linters write it."""
    file, line, start, _ = marked(finding)
    place = f"{file}:{line}:{start}: " if line else ""
    return printable(f"{place}{finding.level} {finding.rule} {report.sentence(finding)}")


def marked(finding: Finding) -> tuple[str, int, int, int]:
    """File, line and columns of the cause, from 1; the line is 0 if it has none."""
    file = finding.where.rpartition(":")[0]
    line, start, end = cause(finding.where, finding.rule)
    return cell_of(file) or from_here(file).as_posix(), line, start + 1, max(end, start + 1) + 1


def _with_fix(report: "Report", finding: Finding) -> str:
    return report.sentence(finding) + f". Fix: {finding.fix}" * bool(finding.fix)


def _annotation(report: "Report", finding: Finding) -> str:
    """A command to GitHub's runner, in which some characters stand as escapes."""
    file, line, start, _ = marked(finding)
    place = f"file={_escaped(file, ':,')},line={line},col={start}," if line else ""
    text = _escaped(_with_fix(report, finding))
    level = _IN_SARIF[finding.level].replace("note", "notice")
    return f"::{level} {place}title=gradaudit {finding.rule}::{text}"


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(c):02X}" if c in f"%\r\n{more}" else c for c in text)


def _sarif(report: "Report") -> dict:
    """SARIF 2.1.0, as code hosts and editors read it."""
    names = dict.fromkeys(finding.rule for finding in report.findings)
    rules = [{"id": name, "shortDescription": {"text": RULES[name].symptom}} for name in names]
    results = [_result(report, finding) for finding in report.findings]
    run = {"tool": {"driver": {"name": "gradaudit", "rules": rules}}, "results": results}
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}


def _result(report: "Report", finding: Finding) -> dict:
    file, line, start, end = marked(finding)
    file = Path(file).as_uri() if os.path.isabs(file) else quote(file)
    place = {"artifactLocation": {"uri": file}, "region": {"startLine": line, "startColumn": start, "endColumn": end}}
    text, level = {"text": _with_fix(report, finding)}, _IN_SARIF[finding.level]
    places = [{"physicalLocation": place}] * bool(line)
    return {"ruleId": finding.rule, "level": level, "message": text, "locations": places}


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
        same = list(same)
        for finding, following in zip(same, [*same[1:], None], strict=True):
            lines += lines_of(report.sentence(finding), width, "  ")
            is_last = following is None or following.fix != finding.fix  # of those with this fix
            fix = lines_of(f"fix: {as_clause(finding.fix)}", width, "  ", "       ") if finding.fix and is_last else []
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
