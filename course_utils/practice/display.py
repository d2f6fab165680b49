"""What a cell shows: a widget where a kernel is live, the same in HTML and text where none is (on GitHub, in print)."""

from html import escape
from typing import Any

BOX = "border-left:4px solid {color};padding:0.4em 0.9em;margin:0.3em 0"
ASK, RIGHT, WRONG = "#0072B2", "#009E73", "#D55E00"


def show_widget(widget: Any, static: dict[str, Any], metadata: dict | None = None) -> None:
    """The widget where a kernel is live; where none is, what stands for it: its equivalent by type of content."""
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    _show({"application/vnd.jupyter.widget-view+json": view, **static}, metadata)


def show_box(color: str, text: str) -> None:
    """A text in a box of one of the colours of this module."""
    _show(as_static(box(color, escape(text)), text))


def as_static(html: str, text: str) -> dict[str, str]:
    """What `show_widget` shows where no kernel is live: HTML, and text where there is no HTML either."""
    return {"text/html": html, "text/plain": text}


def box(color: str, html: str) -> str:
    """HTML with a line of a colour at its left.

    >>> box(RIGHT, "Right.")
    '<div style="border-left:4px solid #009E73;padding:0.4em 0.9em;margin:0.3em 0">Right.</div>'
    """
    return f'<div style="{BOX.format(color=color)}">{html}</div>'


def folded(question: str, answer: str) -> str:
    """A question whose answer unfolds."""
    return (
        f'<details style="{BOX.format(color=ASK)}"><summary>{escape(question)}</summary>'
        f'<div style="padding-top:0.4em">{escape(answer)}</div></details>'
    )


def _show(bundle: dict[str, Any], metadata: dict | None = None) -> None:
    from IPython.display import display

    display(bundle, raw=True, metadata=metadata)
