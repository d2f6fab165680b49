"""Draws the six bugs of the cheat sheet by their silhouettes: `python docs/silhouettes.py`.

That writes README's two pictures, for light and dark; the site draws the same outlines in its own
colours.
"""

from html import escape
from pathlib import Path
from textwrap import wrap

import cheatsheet

GITHUB = Path(__file__).parent.parent / ".github"
WIDTH, HEIGHT = 172, 92  # of one outline
GAP, LABEL = 22, 50  # between two; above one, for its name in two lines
COLUMNS = 3
THEMES = {  # by the file: text and lines, the area of the buggy loop, the fixed loop, a step, around a number
    "silhouettes.svg": ("#1f2328", "#d1d9e0", "#0072b2", "#c35600", "#ffffff"),
    "silhouettes-dark.svg": ("#f0f6fc", "#3d444d", "#56b4e9", "#e69f00", "#0d1117"),
}
STYLE = """\
text {{ font: bold 19px sans-serif; fill: {0}; }}
.buggy {{ fill: {1}; stroke: {0}; stroke-width: 2; }}
.fixed {{ fill: none; stroke: {2}; stroke-width: 2.5; stroke-dasharray: 6 3; }}
.step {{ fill: {3}; }}
.held {{ text-anchor: middle; stroke: {4}; stroke-width: 4; paint-order: stroke; }}"""


def outline(bug: dict) -> str:
    """The norm of `.grad` over a buggy loop's micro-batches, over its fixed twin's, in elements of SVG."""
    tallest = 1.35 * max(norm for _, norm, *_ in bug["buggy"] + bug["fixed"])  # with room for a number above

    def at(k: float, norm: float) -> tuple[int, int]:
        return round(k / bug["micro_batches"] * WIDTH), round(HEIGHT * (1 - norm / tallest))

    def stairs(points: list[cheatsheet.Point]) -> str:
        places = (at(k, norm) for k, norm, *_ in points)
        return f"M0 {HEIGHT}{''.join(f'H{x}V{y}' for x, y in places)}H{WIDTH}"

    drawn = [f'<path class="buggy" d="{stairs(bug["buggy"])}V{HEIGHT}z"/>']
    drawn += [f'<path class="fixed" d="{stairs(bug["fixed"])}"/>']
    for k, norm, kind, held in bug["buggy"]:
        if kind == "step":
            x, y = at(k, norm)
            drawn += [f'<path class="step" d="M{x} {y - 6}l6 6l-6 6l-6 -6z"/>']
            drawn += [f'<text class="held" x="{x}" y="{y - 10}">{held}</text>']
    return "\n".join(drawn)


def updates(bug: dict) -> list[int]:
    """How many micro-batches each update of the buggy loop holds, as far as it is drawn."""
    return [held for *_, kind, held in bug["buggy"] if kind == "step"]


def picture(bugs: list[dict], theme: tuple[str, ...]) -> str:
    """All of them in one image, in letters that can be read where it is 360 pixels wide."""
    across, down = WIDTH + GAP, LABEL + HEIGHT + GAP
    width, height = COLUMNS * across, len(bugs) // COLUMNS * down
    parts = []
    for number, bug in enumerate(bugs):
        x, y = number % COLUMNS * across + GAP // 2, number // COLUMNS * down
        lines = wrap(bug["name"], 14, break_on_hyphens=False)
        name = "".join(f'<tspan x="0" y="{20 + 23 * line}">{escape(text)}</tspan>' for line, text in enumerate(lines))
        parts += [f'<g transform="translate({x} {y})"><text>{name}</text>']
        parts += [f'<g transform="translate(0 {LABEL})">\n{outline(bug)}\n</g></g>']
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    return "\n".join([head, f"<style>\n{STYLE.format(*theme)}\n</style>", *parts, "</svg>\n"])


def files() -> dict[Path, str]:
    """README's pictures, as they should be."""
    bugs = cheatsheet.bugs()
    return {GITHUB / name: picture(bugs, theme) for name, theme in THEMES.items()}


if __name__ == "__main__":
    for path, svg in files().items():
        path.write_text(svg, encoding="utf-8")
