"""What all figures share: colours, dashes, markers and sizes, labelled axes, and lines with their names beside them.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart. Every line also has its own dashes
and markers, so that a black-and-white print shows the same.
"""

from collections.abc import Iterable, Sequence
from math import isfinite
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import offset_copy

BLACK, ORANGE, SKY, GREEN, BLUE, RED, PINK = "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
LOOKS = ((BLUE, "-", "o"), (RED, "--", "s"), (GREEN, "-.", "^"), (ORANGE, ":", "D"), (PINK, (0, (5, 1)), "v"))
PALE, SHADE = "#EAF4FB", "#F6DCCB"  # behind text, behind an update
FONT = 11
SMALL = {"fontsize": FONT - 1}

Pair = tuple[float, float]


def new_figure(width: float = 7.5, height: float = 3.4, rows: int = 1, columns: int = 1, **grid: object):
    """A figure and its axes, row by row.

    Args:
        width: In inches.
        height: In inches.
        rows: How many rows of axes it has.
        columns: How many columns.
        **grid: Further arguments of `subplots`, such as `height_ratios`.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **grid).flat)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=FONT - 1)
    return figure, axes


def name_axis(axis: Axes, xlabel: str = "", ylabel: str = "", title: str = "", title_size: int = FONT) -> None:
    """Writes below, beside and above the axes."""
    axis.set_xlabel(xlabel, fontsize=FONT)
    axis.set_ylabel(ylabel, fontsize=FONT)
    axis.set_title(title, fontsize=title_size, loc="left")


def scale_and_name(axis: Axes, log: str, ylim: Pair | None, xlabel: str, ylabel: str, title: str) -> None:
    """Like `label`, with logarithmic axes, `"x"`, `"y"` or `"xy"`, and limits of the y axis."""
    name_axis(axis, xlabel, ylabel, title, FONT + 1)
    if "x" in log:
        axis.set_xscale("log", base=2)
    if "y" in log:
        axis.set_yscale("log")
    if ylim:
        axis.set_ylim(ylim)


def name_lines(axis: Axes, lines: Sequence[Line2D]) -> None:
    """Writes the name of each line beside its right end, no two over each other. One line needs no name.

    Where a line ends before the others, a legend names them.
    """
    if len(lines) < 2:
        return
    ends = [_end(line) for line in lines]
    if any(end is None for end in ends) or len({x for x, _ in ends}) > 1:
        axis.legend(handles=lines, frameon=False, **SMALL)
        return
    axis.autoscale_view()  # limits are settled late otherwise
    inches = axis.figure.get_figheight() - 0.85  # what title and labels leave of it, about
    names = [fill(str(line.get_label()), 18, break_on_hyphens=False) for line in lines]
    heights = [1.3 * SMALL["fontsize"] * (1 + name.count("\n")) / (72 * inches) for name in names]
    to_share = axis.transScale + axis.transLimits  # from data to shares of the axes
    at = [min(1.0, max(0.0, to_share.transform(end)[1])) for end in ends]
    right = to_share.transform(ends[0])[0]
    beside = offset_copy(axis.transAxes, axis.figure, x=9, units="points")
    for line, name, end, place in zip(lines, names, at, apart(at, heights), strict=True):
        color = line.get_color()
        leader = {"arrowstyle": "-", "color": color, "lw": 0.8, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 0}
        axis.annotate(name, (right + 0.008, end), (1, place), xycoords="axes fraction", textcoords=beside, va="center",
                      color=ink(color), arrowprops=leader, linespacing=1.1, **SMALL)  # fmt: skip


def _end(line: Line2D) -> Pair | None:
    """The last point of a line that has a value."""
    points = [(x, y) for x, y in zip(*line.get_data(), strict=True) if isfinite(y)]
    return points[-1] if points else None


def apart(places: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Where labels of some heights stand, near the places that they belong to, without covering each other.

    >>> apart([0.5, 0.5, 0.9], [0.1, 0.1, 0.1])
    [0.45, 0.55, 0.9]
    """
    groups: list[list[int]] = []  # labels that touch, from below; a group stands around the mean of its places
    for k in sorted(range(len(places)), key=lambda k: places[k]):
        groups.append([k])
        while len(groups) > 1 and _span(groups[-2], places, heights)[1] > _span(groups[-1], places, heights)[0]:
            groups[-2:] = [groups[-2] + groups[-1]]
    found = list(places)
    for group in groups:
        bottom, _ = _span(group, places, heights)
        for k in group:
            found[k] = round(bottom + heights[k] / 2, 9)
            bottom += heights[k]
    return found


def _span(group: Sequence[int], places: Sequence[float], heights: Sequence[float]) -> Pair:
    middle, half = sum(places[k] for k in group) / len(group), sum(heights[k] for k in group) / 2
    return middle - half, middle + half


def ink(color: str) -> tuple[float, ...]:
    """A colour dark enough for letters on white."""
    return tuple(0.66 * share for share in to_rgb(color))


def legend_above(figure: Figure, columns: int, *handles_and_labels: Iterable) -> None:
    """One legend for all axes, above them."""
    figure.legend(*handles_and_labels, loc="outside upper center", ncols=columns, frameon=False, **SMALL)


def write(axis: Axes, text: str, at: Pair, shift: Pair, **look: object) -> None:
    """Writes beside the point `at`, shifted by so many points."""
    axis.annotate(text, at, xytext=shift, textcoords="offset points", **{"ha": "center", **SMALL, **look})


def arrow(axis: Axes, start: Sequence[float], end: Sequence[float], color: str, width: float, dashes="-") -> None:
    """An arrow between two points."""
    look = {"arrowstyle": "->", "color": color, "linestyle": dashes, "lw": width}
    axis.annotate("", end, start, arrowprops=look)


def in_bytes(most: float) -> tuple[float, str]:
    """The unit in which to write up to so many bytes: by what to divide, and its name.

    >>> in_bytes(2_404_416)
    (1000000.0, 'MB')
    """
    return next(
        ((unit, name) for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if most >= unit), (1.0, "bytes")
    )
