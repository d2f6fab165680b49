"""Outputs of cells: a widget where a kernel is live, else the same in HTML and text.

Beside these, an output of the course says in JSON what it is, so that the handouts need not read
English sentences. Programs that show notebooks ignore a type of content that they do not know.
"""

import base64
import re
from collections.abc import Callable, Sequence
from html import escape, unescape
from io import BytesIO
from typing import Any

import IPython.display

COURSE = "application/vnd.course+json"
BOX = "border-left:4px solid {color};padding:0.4em 0.9em;margin:0.3em 0"
ASK, RIGHT, WRONG = "#0072B2", "#009E73", "#D55E00"
_LINES, _WIDE = 20, 300  # of what an answer printed
_PICTURE = r'<img width="\d+" alt="([^"]*)" src="[^"]*">'
# Colours first, whole.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def show(figure: Any, alt: str) -> None:
    """Displays a figure in a notebook.

    Args:
        figure: A matplotlib figure.
        alt: A sentence that says what the figure shows to those who cannot see it.

    Example:
        show(ledger(trace), "The norm of .grad rises with each backward pass.")
    """
    width, _ = figure.get_size_inches()
    size = {"image/png": {"width": int(width * 100), "alt": alt}}
    _display({"image/png": png(figure), "text/plain": f"Figure: {alt}"}, size)


def png(figure: Any) -> bytes:
    """The figure as a PNG image, at 200 dots per inch."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=200, metadata={"Software": None})
    return buffer.getvalue()


def show_table(caption: str, rows: Sequence[Sequence[str]], strong: Callable[[str], bool] = lambda text: False) -> None:
    """Displays a table.

    Args:
        caption: A sentence above the table.
        rows: The texts of the cells, the header first; code in them stands between backquotes.
        strong: Which texts are bold, apart from the header's.
    """
    html = as_table(caption, rows, strong)
    _display({"text/html": html, "text/plain": "\n".join([caption, *map(" | ".join, rows)])})


def as_table(caption: str, rows: Sequence[Sequence[str]], strong: Callable[[str], bool] = lambda text: False) -> str:
    """The HTML of a table, from the same."""
    edge = "border:1px solid #555;padding:2px 6px;text-align:left;vertical-align:top"
    lines = []
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        cells = (
            f'<{tag} style="{edge};font-weight:{"bold" if not number or strong(text) else "normal"}">'
            f"{with_code(text)}</{tag}>"
            for text in row
        )
        lines.append(f'<tr style="page-break-inside:avoid">{"".join(cells)}</tr>')
    return (
        '<table style="border-collapse:collapse;font-size:13px;max-width:180mm;page-break-inside:avoid">'
        f'<caption style="text-align:left;padding:4px 0">{escape(caption)}</caption>{"".join(lines)}</table>'
    )


def show_widget(widget: Any, static: dict[str, Any]) -> None:
    """Displays a widget, or `static` where no kernel is live."""
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    _display({"application/vnd.jupyter.widget-view+json": view, **static})


def show_below(head: str, color: str, text: str, course: dict | None = None) -> None:
    """Displays a text, with code between backticks, in a box below a line that a fold shows."""
    _display(as_static(box(color, with_code(text)), f"{head}\n{text}", course, head))


def show_fold(head: str, color: str, text: str, is_open: bool, course: dict) -> None:
    """Displays Markdown in a fold, which all that shows notebooks can render.

    Args:
        head: The line that shows.
        color: The colour of the line at its left.
        text: Markdown.
        is_open: Whether the fold is open.
        course: A description in JSON, with a `kind`.
    """
    style = f'style="{BOX.format(color=color)}"'
    summary = f'<summary style="cursor:pointer">{with_code(head)}</summary>'
    shown = f"<details{' open' * is_open} {style}>{summary}\n\n{text}\n\n</details>"
    plain = re.sub("</?code>", "`", re.sub("</?p>", "", re.sub(_PICTURE, r"Figure: \1", f"{head}\n{text}")))
    _display({"text/markdown": shown, "text/plain": unescape(plain), COURSE: course})


def as_image(figure: Any, alt: str) -> str:
    """The HTML of a figure, with the image in it."""
    width, _ = figure.get_size_inches()
    code = base64.b64encode(png(figure)).decode()
    return f'<img width="{int(width * 100)}" alt="{escape(alt)}" src="data:image/png;base64,{code}">'


def show_verdict(color: str, text: str, hint: str, printed: str, course: dict) -> None:
    """Displays a verdict in a box, with its hint and what the answer printed in folds below it.

    The text alone is the verdict without the hint, so that nothing gives a hint to those who did
    not ask.
    """
    lines = printed.rstrip("\n").split("\n")
    shown = "\n".join(line[:_WIDE] for line in lines[:_LINES])
    if len(lines) > _LINES:
        shown += f"\n... and {len(lines) - _LINES} more lines"
    html = with_code(text) + _fold("Hint", with_code(hint)) * bool(hint)
    html += _fold("What your code printed", f'<pre style="margin:0">{escape(shown)}</pre>') * bool(printed.strip())
    _display(as_static(box(color, html), text, course))


def with_code(text: str) -> str:
    """HTML of a text in which code stands between backticks.

    >>> with_code("`step()` < 1")
    '<code>step()</code> &lt; 1'
    """
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def show_loop(title: str, text: str, new: Sequence[int]) -> None:
    """Displays a loop's text with its new lines marked.

    Args:
        title: What loop it is.
        text: Its source.
        new: The numbers of the lines that are new, from 1.
    """
    lines = text.rstrip("\n").split("\n")
    plain = [f"{'+' if number in new else ' '} {line}" for number, line in enumerate(lines, start=1)]
    mark = '<span style="user-select:none">{}</span>{}'  # so that what is copied is Python
    marked = "\n".join(mark.format(line[:2], escape(line[2:])) for line in plain)
    head = f"{title[0].upper()}{title[1:]}"
    says = f"{head}. Lines marked + are new." if new else f"{head}."  # shows where a cell's outputs are folded, too
    _display(as_static(box(ASK, f"<pre>{marked}</pre>"), "\n".join([head, *plain]), {"kind": "loop"}, says))


def _fold(title: str, html: str) -> str:
    return (
        f'<details style="margin-top:0.4em"><summary style="cursor:pointer">{title}</summary>'
        f'<div style="padding:0.3em 0 0 1.1em">{html}</div></details>'
    )


def as_static(html: str, text: str, course: dict | None = None, head: str = " ") -> dict[str, Any]:
    """The content that is shown where no kernel is live, by type.

    Args:
        html: The HTML. Control characters that an answer printed, such as a terminal's colours, go.
        text: The same as plain text.
        course: A description in JSON, with a `kind`.
        head: The first line of the HTML. Of outputs that are folded JupyterLab 4 shows the first
            line that is not empty of the first one, raw: so it is never a tag.
    """
    html = _CONTROL.sub("", f"{escape(head, quote=False)}\n{html}")
    return {"text/html": html, "text/plain": _CONTROL.sub("", text)} | ({COURSE: course} if course else {})


def box(color: str, html: str) -> str:
    """HTML with a line of a colour at its left."""
    return f'<div style="{BOX.format(color=color)}">{html}</div>'


def folded(question: str, answer: str) -> str:
    """A question whose answer unfolds."""
    return (
        f'<details style="{BOX.format(color=ASK)}"><summary>{escape(question)}</summary>'
        f'<div style="padding-top:0.4em">{escape(answer)}</div></details>'
    )


def _display(bundle: dict[str, Any], metadata: dict | None = None) -> None:
    IPython.display.display(bundle, raw=True, metadata=metadata)
