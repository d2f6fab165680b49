"""The look of all figures: colours, dashes, markers, sizes and labelled axes.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart, the green and the
red a little darker, so that letters in them can be read. Every line also has its own dashes and
markers, so that a black-and-white print shows the same. Figures are transparent, and their ink can
be read on white, on paper and in a dark theme; text in a coloured box is black.
"""

from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, ORANGE, SKY, GREEN, BLUE, RED, PINK = "#757575", "#E69F00", "#56B4E9", "#008762", "#0072B2", "#C35600", "#CC79A7"
LOOKS = ((BLUE, "-", "o"), (RED, "--", "s"), (GREEN, "-.", "^"), (ORANGE, ":", "D"), (PINK, (0, (5, 1)), "v"))
PALE = "#EAF4FB"  # behind text
FONT = 11
SMALL = {"fontsize": FONT - 1}
LEGEND = {"frameon": False, "labelcolor": INK, **SMALL}
_THEME = dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK)
_THEME |= {"figure.facecolor": "none", "axes.facecolor": "none"}

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
    with rc_context(_THEME):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False, **grid).flat)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=FONT - 1)
    return figure, axes


def name_axis(axis: Axes, xlabel: str = "", ylabel: str = "", title: str = "") -> None:
    """Writes below, beside and above the axes."""
    axis.set_xlabel(xlabel, fontsize=FONT)
    axis.set_ylabel(ylabel, fontsize=FONT)
    axis.set_title(title, fontsize=FONT, loc="left")


def write(axis: Axes, text: str, at: Pair, shift: Pair, **look: object) -> None:
    """Writes beside the point `at`, shifted by so many points."""
    axis.annotate(text, at, xytext=shift, textcoords="offset points", **{"ha": "center", "color": INK, **SMALL, **look})


def draw_only(axis: Axes, title: str, xlim: Pair, ylim: Pair) -> None:
    """Makes a drawing of axes: without lines and ticks, within limits that leave room for its text."""
    axis.set(xlim=xlim, ylim=ylim, aspect="equal")
    name_axis(axis, title=title)
    axis.axis("off")
    for text in axis.texts:
        text.set_in_layout(False)


def arrow(axis: Axes, start: Sequence[float], end: Sequence[float], color: str, width: float, dashes="-") -> None:
    """An arrow between two points."""
    look = {"arrowstyle": "->", "color": color, "linestyle": dashes, "lw": width}
    axis.annotate("", end, start, arrowprops=look)
