"""The prose of a notebook as the tests read it: passages without code and formulas, and the numbers in them."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import takewhile

from course_utils.publish.notebook import Notebook, text_of

_NO_PROSE = r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$\n]*\$|\[[^\]]*\]\([^)]*\)|<[^>]*>"
_LABELS = (  # numbers that name something, at which other tests look: an exercise's head, a step, a notebook
    r"^\*\*[^*\n]*minutes[^*\n]*\*\*|[Dd]ifficulty \d/5|\b[Ss]teps? \d+(?:(?:, \d+)*,? (?:and|to|or) \d+)?|"
    r"\b(?:[Nn]otebooks?|in|of) 0\d[a-d]?\b"
)
UNITS = r"MB|MiB|GB|GiB|kB|bytes?|bits?|milliseconds?|seconds?|percent|per mille|%|‰"
_NUMBER = rf"(?<![\w.#/-])\d+(?:,\d{{3}})*(?:\.\d+)*(?:e-?\d+)?(?![\w/])(?:[ -]?(?:{UNITS})(?!\w))?"


def plain(text: str) -> str:
    """Prose in one line without code, formulas, links, and what names a step or heads an exercise."""
    return " ".join(re.sub(_LABELS, " ", re.sub(_NO_PROSE, " ", text, flags=re.S), flags=re.M).split())


def numbers(text: str, but: Iterable[str] = ()) -> list[str]:
    """The numbers in prose, each with its unit, but for those in phrases that are given.

    >>> numbers("In Step 3, `f(4)` took 7,500 MB instead of 8,000, so 6% of 16.", but=["6% of 16"])
    ['7,500 MB', '8,000']
    """
    line = plain(text)
    given = [found.span() for phrase in but for found in re.finditer(re.escape(phrase), line)]
    found = re.finditer(_NUMBER, line)
    return [n[0] for n in found if not any(start <= n.start() and n.end() <= end for start, end in given)]


def stands_in(number: str, text: str) -> bool:
    """Whether code or an output holds a number, however it writes it, and its unit.

    >>> stands_in("7,500 MB", "total = 7500  # MB"), stands_in("7,500 MB", "total = 7500  # GB")
    (True, False)
    """
    value, unit = re.fullmatch(rf"(.*?)[ -]?((?:{UNITS})?)", number).groups()
    same = {"percent": "(?:percent|%)", "%": "(?:percent|%)"}.get(unit, unit.rstrip("s"))
    return _as_written(value) in _all_of(text) and bool(re.search(rf"(?<![A-Za-z]){same}", text))


@cache
def _all_of(text: str) -> set[str]:
    return set(map(_as_written, re.findall(r"\d[\d,_]*(?:\.\d+)*(?:e-?\d+)?", text)))


def _as_written(number: str) -> str:
    """A number as it is compared: 7,500 and 7500.0 are one."""
    return re.sub(r"[,_]|\.0+$", "", number)


def after_code(notebook: Notebook) -> Iterator[tuple[str, str]]:
    """What follows cells of code, up to the next heading, and what these cells have printed."""
    cells = notebook.for_learners
    for place, cell in enumerate(cells):
        if cell.cell_type == "markdown" and place and cells[place - 1].cell_type == "code":
            before = takewhile(lambda cell: cell.cell_type == "code", reversed(cells[:place]))
            yield re.split(r"^## ", cell.source, flags=re.M)[0], "\n".join(map(printed, before))


def printed(cell) -> str:
    """What a cell shows as text, without the captions of its figures."""
    return "\n".join(text_of(output) for output in cell.get("outputs", []) if "image/png" not in output.get("data", {}))


def seen(cell) -> str:
    """A cell's source and what it shows."""
    return "\n".join([cell.source, *map(text_of, cell.get("outputs", []))])
