"""A record as a page of its own, which needs no kernel and no network."""

import json
from html import escape
from pathlib import Path

from course_utils.practice.stepping.drawing import panel, said, strip
from course_utils.practice.stepping.sidebyside import moments
from course_utils.recording.stepping import Steps

_TEMPLATE = Path(__file__).with_name("page.html")


def page(title: str, versions: dict[str, list[Steps]]) -> str:
    """HTML with all versions of a loop, recorded.

    Args:
        title: Of the page.
        versions: By name, the record of each; two records are shown side by side.
    """
    pieces: dict[str, int] = {}  # each text once: most moments change little

    def piece(html: str) -> int:
        return pieces.setdefault(html, len(pieces))

    told = []
    for name, tracks in versions.items():
        shown = [[piece(said(tracks, places)), [*map(piece, panel(tracks, places))]] for places in moments(tracks)]
        told.append({"name": name, "moments": shown})
    first = next(iter(versions.values()))
    filled = {
        "title": escape(title),
        "strip": "".join(strip(steps, f"`{steps.loop.name}`") for steps in first),
        "data": as_script({"versions": told, "pieces": list(pieces)}),
    }
    html = _TEMPLATE.read_text(encoding="utf-8")
    head, *rest = html.split("{{")  # one pass, so that what is filled in is never filled in again
    return head + "".join(filled[part.split("}}", 1)[0]] + part.split("}}", 1)[1] for part in rest)


def as_script(data: object) -> str:
    """JSON that can stand in a script element: nothing in it can end the element.

    >>> as_script("</script>")
    '"\\\\u003c/script>"'
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
