"""One page about a script's runs, as HTML that needs no other file, no network and no script."""

import platform
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

import torch

from course_utils import plots
from course_utils.project.accept import Acceptance
from course_utils.project.checks import MICRO_BATCHES, WINDOW

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; max-width: 64rem; margin: 1rem auto; padding: 0 1rem; }
body { color: #1b1b1b; background: #fff; }
h1 { font-size: 1.3rem; margin: .4rem 0; }
h2 { font-size: 1rem; margin: .8rem 0 .2rem; }
td { padding: .1rem .8rem .1rem 0; vertical-align: top; }
td.fails { color: #b3261e; font-weight: bold; }
main { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1.5rem; }
main svg { width: 100%; height: auto; max-height: 20rem; }
@media screen and (max-width: 50rem) { main { display: block; } }
@page { margin: 1cm; }
@media print { body { font-size: 11px; margin: 0; padding: 0; } main svg { max-height: 6.5cm; } }
"""
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><style>{style}</style></head>
<body><h1>{title}</h1>
<table>{rows}</table>
<main>{figures}</main>
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
    kinds = {True: "ok", False: "fails", None: "-"}
    rows = [
        f'<tr><td class="{kinds[result.passed]}">{kinds[result.passed]}</td><td>{escape(result.name)}</td>'
        f"<td>{escape(result.says)}</td></tr>\n"
        for result in found.results
    ]
    figures = [f"<section><h2>{escape(title)}</h2>{svg}</section>\n" for title, svg in _figures(found).items()]
    return _PAGE.format(
        title=escape(f"{script}: {verdict}"),
        style=_STYLE,
        rows="".join(rows),
        figures="".join(figures),
        words=escape(words),
        versions=f"Python {platform.python_version()}, PyTorch {torch.__version__}, {platform.system()}",
    )


def _figures(found: Acceptance) -> dict[str, str]:
    """Each figure as SVG, by its heading."""
    figures = {}
    if found.losses and found.held_out:
        x = list(range(1, len(found.losses) + 1))
        lines = {"training, each update": found.losses, "bigrams": [found.held_out[1]] * len(x)}
        title = f"Loss per letter: {found.held_out[0]:.3f} at the end, on words not seen"
        figures[title] = _svg(plots.curves(lines, x, "update", "loss per letter", plain=lines))
    first = [[round(share, 9) if share == share else 0.0 for share in row[:MICRO_BATCHES]] for row in found.table]
    if first := [row for row in first if any(row)]:
        drawn = plots.shares({"first epoch": first}, right=1 / WINDOW, sums=True)
        figures[f"Windows of {WINDOW}: the share of each micro-batch in each update"] = _svg(drawn)
    if found.peaks:
        peaks = {name: peak / 1e6 for name, peak in found.peaks.items()}
        figures["Memory: the most that is kept for backward"] = _svg(plots.bars(peaks, "", "{:.2f} MB"))
    if found.drawing:
        figures["Ledger: backward calls whose gradients are held"] = found.drawing
    return figures


def _svg(figure: "Figure") -> str:
    file = StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
