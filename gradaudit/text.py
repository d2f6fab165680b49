"""Words in a terminal or a file: their width, colours and characters. Needs nothing but Python."""

import os
import re
import shutil
from collections.abc import Iterable
from difflib import get_close_matches
from textwrap import TextWrapper, dedent
from typing import TextIO

WIDTH = 88  # of what isn't written to a terminal, such as a notebook's output: the same everywhere
_WIDEST = 100
_OPERATORS, _NO_BREAK = re.compile(" (%|[+]|==|!=) "), "\N{NO-BREAK SPACE}"  # (i + 1) % n == 0 stays on one line
_COLOURS = {"error": "1;31", "advice": "1;33", "undecided": "1;36", "code": "2", "fix": "32", "name": "1"}


def width_of(stream: TextIO) -> int:
    """Columns of text: those of the terminal, up to 100; 88 if the stream is none."""
    return min(shutil.get_terminal_size().columns, _WIDEST) if _is_terminal(stream) else WIDTH


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


def texts_of(docstring: str) -> dict[str, str]:
    r"""The parts of a rule's docstring by their titles: code as it stands, and all else in one line.

    >>> texts_of("Title.\n\nFix: Zero\n    it.\nWrong:\n    step()")
    {'Fix': 'Zero it.', 'Wrong': 'step()'}
    """
    parts = re.findall(r"^([A-Z][a-z ]+):\s(.*?)(?=^[A-Z][a-z ]+:\s|\Z)", docstring, re.M | re.S)
    code = "Wrong", "Correct"
    return {title: dedent(text).strip() if title in code else " ".join(text.split()) for title, text in parts}


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """Asks for the nearest of some names, or says something else if none is near.

    >>> did_you_mean("los-scale", ["loss-scale", "batchnorm"])
    'did you mean loss-scale?'
    """
    near = get_close_matches(name, names, 1)
    return printable(f"did you mean {near[0]}?" if near else otherwise)


def write(text: str, stream: TextIO) -> None:
    """Prints text, in one piece, also where the stream knows only some characters: a long run must not end in that."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), end="", file=stream, flush=True)


def lines_of(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """Text in lines of at most this width; those after the first have the indent `hanging`, if it differs."""
    hanging = indent if hanging is None else hanging
    text = _OPERATORS.sub(rf"{_NO_BREAK}\1{_NO_BREAK}", printable(re.sub(r"\s", " ", text)))
    wrapped = TextWrapper(width, indent, hanging, break_long_words=False, break_on_hyphens=False).wrap(text)
    return [line.replace(_NO_BREAK, " ") for line in wrapped]


def paint(text: str, kind: str, colour: bool) -> str:
    return f"\033[{_COLOURS[kind]}m{text}\033[0m" if colour else text
