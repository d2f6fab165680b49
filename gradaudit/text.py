"""The words of a report: wrapped for a terminal or a file, and as annotations of GitHub."""

import os
import re
import shutil
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, TextIO
from unicodedata import east_asian_width

from gradaudit.callsite import short, source
from gradaudit.compare.rules import ADVICE, ERROR, UNDECIDED
from gradaudit.judging import Finding

if TYPE_CHECKING:
    from gradaudit.report import Report

_WIDTH = 88  # of what isn't written to a terminal, such as a notebook's output: the same everywhere
_WIDEST = 100
_OPERATORS, _NO_BREAK = re.compile(" (%|[+]|==|!=) "), "\N{NO-BREAK SPACE}"  # (i + 1) % n == 0 stays on one line
_COLOURS = {ERROR: "1;31", ADVICE: "1;33", UNDECIDED: "1;36", "code": "2", "fix": "32", "name": "1"}
_ANNOTATIONS = {ERROR: "error", ADVICE: "warning", UNDECIDED: "notice"}


def width_of(stream: TextIO) -> int:
    """Columns of text: those of the terminal, up to 100; 88 if the stream is none."""
    return min(shutil.get_terminal_size().columns, _WIDEST) if _is_terminal(stream) else _WIDTH


def has_colour(stream: TextIO) -> bool:
    """Is it a terminal that shows colours, and has nobody asked for none (https://no-color.org)?"""
    return _is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _is_terminal(stream: TextIO) -> bool:
    return bool(getattr(stream, "isatty", bool)())


def printable(text: str) -> str:
    r"""Text in which characters that a terminal would obey, such as those in a file's name, stand as escapes.

    >>> printable("train\x1b[2J.py")
    'train\\x1b[2J.py'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def rule_line(title: str, file: str, width: int) -> str:
    """A line with a title and a file in it, which sets the report apart from what the script has printed.

    Of a path that is too long, the end is shown: whole folders and the file, if that is not too long itself.
    """
    room, whole = width - len(f"── {title}  ─"), printable(file)
    shown = rest = whole
    while _columns(shown) > room and len(rest) > 1:
        rest = rest.partition("/")[2] or rest[1:]
        shown = f".../{rest}" if whole.endswith(f"/{rest}") else f"...{rest}"
    line = f"── {title} {shown} "
    return line + "─" * (width - _columns(line))


def _columns(text: str) -> int:
    """Those that a terminal takes for it: two for each Chinese character, for instance."""
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def write(text: str, stream: TextIO) -> None:
    """Prints text, in one piece, also where the stream knows only some characters: a long run must not end in that."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("─", "-").encode(encoding, "replace").decode(encoding)
    print(text, end="", file=stream, flush=True)


def as_text(report: "Report", width: int, colour: bool = False, before: str = "") -> str:
    """The report in lines of at most this width, unless a single word is longer.

    Args:
        report: A complete report.
        width: Columns.
        colour: Whether to mark levels, code and fixes by ANSI colours.
        before: Words before the summary.
    """
    lines = lines_of(before + report.summary(), width)
    for finding in report.findings:
        head = f"{finding.level.upper()} {finding.rule}"
        place = printable(short(finding.where)) if finding.where else ""
        fits = _columns(f"{head}  {place}") <= width
        lines += ["", paint(head, finding.level, colour) + (f"  {place}".rstrip() if fits else "")]
        lines += [] if fits else [f"    {place}"]
        lines += [paint(line, "code", colour) for line in _code(finding, width)]
        lines += lines_of(report.sentence(finding), width, "  ")
        fix = lines_of(f"fix: {finding.fix}", width, "  ", "       ") if finding.fix else []
        lines += [paint(line, "fix", colour) for line in fix]
    if report.conclusion():
        lines += ["", *lines_of(report.conclusion(), width)]
    return "\n".join(lines)


def lines_of(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """Text in lines of at most this width; those after the first have the indent `hanging`, if it differs."""
    hanging = indent if hanging is None else hanging
    text = printable(re.sub(r"\s", " ", text))
    return [
        line.replace(_NO_BREAK, " ")
        for line in wrap(
            _OPERATORS.sub(rf"{_NO_BREAK}\1{_NO_BREAK}", text),
            width,
            initial_indent=indent,
            subsequent_indent=hanging,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def _code(finding: Finding, width: int) -> list[str]:
    """The line of the user's code, and below it the line of the library that it led to."""
    via = getattr(finding.where, "via", "")
    lines = [source(finding.where), f"via {short(via)}  {source(via)}".rstrip() if via else ""]
    return [f"    {_cut(printable(line.expandtabs(4)), width - 4)}" for line in lines if line]


def _cut(line: str, width: int) -> str:
    """As much of a line as fits, up to the end of a word."""
    return line if len(line) <= width else f"{line[: width - 3].rpartition(' ')[0] or line[: width - 4]} ..."


def paint(text: str, kind: str, colour: bool) -> str:
    return f"\033[{_COLOURS[kind]}m{text}\033[0m" if colour else text


def as_annotations(report: "Report") -> str:
    """The findings as workflow commands, which GitHub shows beside the lines of a pull request.

    A path is relative to the repository, as GitHub expects it, if the file is inside.
    """
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())
    warnings = [report.summary()] * bool(report.failure) + [report.conclusion()] * (not report.judged)
    commands = [f"::warning::{_escaped(warning)}\n" for warning in warnings]
    for finding in report.findings:
        file, _, line = finding.where.rpartition(":")
        path = Path(file).resolve()
        path = path.relative_to(root.resolve()) if path.is_relative_to(root.resolve()) else path
        properties = {"file": path.as_posix(), "line": line} if file else {}
        properties["title"] = f"{finding.rule} ({finding.level})"
        listed = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in properties.items())
        message = report.sentence(finding) + (f"\nfix: {finding.fix}" if finding.fix else "")
        commands.append(f"::{_ANNOTATIONS[finding.level]} {listed}::{_escaped(message)}\n")
    return "".join(commands)


def _escaped(text: str, more: str = "") -> str:
    """Text in a workflow command: percent signs and line breaks are escaped, in a property also colons and commas."""
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return printable(text)
