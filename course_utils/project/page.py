"""One page about a script's runs, as HTML that needs no other file, no network and no script."""

import platform
from collections.abc import Iterator
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

import torch

from course_utils import plots
from course_utils.project.accept import WINDOW, Acceptance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {True: "ok", False: "FAILS", None: "-"}

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 15px/1.4 system-ui, sans-serif; max-width: 50rem; margin: 1rem auto; padding: 0 1rem }}
td {{ padding-right: .8rem; vertical-align: top }} svg {{ width: 100%; height: auto }}</style></head>
<body><h1>{title}</h1>
<table>{rows}</table>
{figures}
<p>Words of {words}. {versions}</p></body></html>
"""


def as_page(found: Acceptance, script: str, words: str) -> str:
    """The page.

    Args:
        found: What was measured.
        script: The name of the script.
        words: Where the words come from.
    """
    verdict = "accepted" if found.accepted else f"not accepted: {', '.join(found.failed)}"
    rows = ["".join(f"<td>{escape(text)}</td>" for text in (WORDS[r.passed], r.name, r.says)) for r in found.results]
    return _PAGE.format(
        title=escape(f"{script}: {verdict}"),
        rows="".join(f"<tr>{row}</tr>\n" for row in rows),
        figures="\n".join(f"<h2>{escape(title)}</h2>{svg}" for title, svg in _figures(found)),
        words=escape(words),
        versions=f"Python {platform.python_version()}, PyTorch {torch.__version__}, {platform.system()}",
    )


def _figures(found: Acceptance) -> Iterator[tuple[str, str]]:
    """The heading and the SVG of each figure."""
    if found.losses:
        *losses, held_out = found.losses
        lines = {"training, each update": losses, "bigrams": [found.bigrams] * len(losses)}
        drawn = plots.curves(lines, list(range(1, len(losses) + 1)), "update", "loss per letter", plain=lines)
        yield f"Loss per letter: {held_out:.3f} at the end, on words not seen", _svg(drawn)
    table = [[round(share, 9) for share in row] for row in found.table if row[0] == row[0]]  # not NaN
    if table:
        drawn = plots.shares({"first epoch": table}, right=1 / WINDOW, sums=True)
        yield f"Windows of {WINDOW}: the share of each micro-batch in each update", _svg(drawn)


def _svg(figure: "Figure") -> str:
    file = StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
