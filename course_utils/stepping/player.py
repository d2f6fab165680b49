"""Frames that were computed before, which a browser shows one at a time, without a kernel."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template


def player(title: str, frames: Sequence[Sequence[str]], controls: Mapping[str, Sequence] | None = None) -> str:
    """The HTML of a player: buttons, a slider and keys go through its frames.

    Args:
        title: What it shows.
        frames: A sentence each, which is also read aloud, and the pieces of HTML below it, which
            are joined. A piece that many frames share is stored once.
        controls: Sliders to find a frame by, instead of these: each has a name, and a value for each
            of its settings. The frames come in the order in which the last one moves fastest.

    Example:
        >>> html = player("Halving", [[f"After {k}:", f"<b>{1 / 2**k}</b>"] for k in range(4)])
    """
    pieces: dict[str, int] = {}
    numbered = [[pieces.setdefault(piece, len(pieces)) for piece in frame] for frame in frames]
    sliders = [[name, *map(str, values)] for name, values in (controls or {}).items()]
    found = {"frames": numbered, "pieces": list(pieces), "controls": sliders}
    data = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    page = template.substitute(title=escape(title), data=data.replace("<", "\\u003c"))
    srcdoc = escape(page).replace("\n", "&#10;")  # a blank line would end it in a page of Markdown
    style = "width:100%;height:36rem;border:0"
    return f'<iframe class="stepper" title="{escape(title)}" style="{style}" srcdoc="{srcdoc}"></iframe>'
