"""Outputs of cells: a widget where a kernel is live, else the same in HTML and text.

Beside these, an output of the course says in JSON what it is, so that the handouts need not read
English sentences. Programs that show notebooks ignore a type of content that they do not know.
"""

import base64
import re
from collections.abc import Callable, Sequence
from html import escape
from io import BytesIO
from typing import Any

import IPython.display

COURSE = "application/vnd.course+json"
BOX = "border-left:4px solid {color};padding:0.4em 0.9em;margin:0.3em 0"
ASK, RIGHT, WRONG = "#0072B2", "#009E73", "#D55E00"
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
    IPython.display.display({"image/png": png(figure), "text/plain": f"Figure: {alt}"}, raw=True, metadata=size)


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

    Example:
        show_table("What clears a gradient", [["call", "leaves"], ["`zero_grad()`", "None"]])
    """
    html = as_table(caption, rows, strong)
    text = "\n".join([caption, *map(" | ".join, rows)])
    IPython.display.display({"text/html": html, "text/plain": text}, raw=True)


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


def show_html(html: str, text: str, course: dict, head: str = " ", widget: Any = None) -> None:
    """Displays HTML, or a widget instead of it where a kernel is live.

    Args:
        html: The HTML. Control characters that an answer printed, such as a terminal's colours, go.
        text: The same as plain text.
        course: A description in JSON, with a `kind`.
        head: The first line of the HTML. Of outputs that are folded JupyterLab 4 shows the first
            line that is not empty of the first one, raw: so it is never a tag.
        widget: The widget.
    """
    html = _CONTROL.sub("", f"{escape(head, quote=False)}\n{html}")
    bundle = {"text/html": html, "text/plain": _CONTROL.sub("", text), COURSE: course}
    if widget is not None:
        view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
        bundle["application/vnd.jupyter.widget-view+json"] = view
    IPython.display.display(bundle, raw=True)


def show_fold(color: str, head: str, text: str, figure: Any, alt: str, course: dict, is_open: bool) -> None:
    """Displays an explanation in a fold, which all that shows notebooks can render.

    Args:
        color: The colour of the line at its left.
        head: The line that shows.
        text: A text, with code between backticks.
        figure: A matplotlib figure, or None.
        alt: A sentence that says what the figure shows.
        course: A description in JSON, with a `kind`; its `because` is Markdown that explains.
        is_open: Whether the fold is open.
    """
    shown, plain = [f"<p>{with_code(text)}</p>"], [f"{head}\n{text}"]
    if figure:
        code = base64.b64encode(png(figure)).decode()
        width, _ = figure.get_size_inches()
        shown += [f'<img width="{int(width * 100)}" alt="{escape(alt)}" src="data:image/png;base64,{code}">']
        plain += [f"Figure: {alt}"]
    style = f'style="{BOX.format(color=color)}"'
    summary = f'<summary style="cursor:pointer">{head}</summary>'
    markdown = "\n\n".join([f"<details{' open' * is_open} {style}>{summary}", *shown, course["because"], "</details>"])
    bundle = {"text/markdown": markdown, "text/plain": "\n\n".join([*plain, course["because"]]), COURSE: course}
    IPython.display.display(bundle, raw=True)


def show_verdict(color: str, text: str, hint: str, printed: str, course: dict) -> None:
    """Displays a verdict in a box, with its hint and what the answer printed in folds below it.

    The text alone is the verdict without the hint, so that nothing gives a hint to those who did
    not ask.
    """
    html = with_code(text) + fold("Hint", with_code(hint)) * bool(hint)
    if printed.strip():
        shown = escape(printed.rstrip("\n"))
        html += fold("What your code printed", f'<pre style="margin:0;max-height:20em;overflow:auto">{shown}</pre>')
    show_html(box(color, html), text, course)


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
    says = f"{title}. Lines marked + are new." if new else f"{title}."  # shows where a cell's outputs are folded, too
    show_html(box(ASK, f"<pre>{marked}</pre>"), "\n".join([title, *plain]), {"kind": "loop"}, says)


def fold(title: str, html: str, style: str = "margin-top:0.4em") -> str:
    """HTML that unfolds below its title."""
    return (
        f'<details style="{style}"><summary style="cursor:pointer">{title}</summary>'
        f'<div style="padding:0.3em 0 0 1.1em">{html}</div></details>'
    )


def box(color: str, html: str) -> str:
    """HTML with a line of a colour at its left."""
    return f'<div style="{BOX.format(color=color)}">{html}</div>'
