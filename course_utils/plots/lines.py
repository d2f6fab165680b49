"""Lines and arrows over an axis."""

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from math import hypot, isfinite
from textwrap import fill

from matplotlib.figure import Figure

from course_utils.plots.look import (
    BLUE,
    FONT,
    GREEN,
    INK,
    LEGEND,
    LOOKS,
    RED,
    Pair,
    arrow,
    ink,
    name_axis,
    new_figure,
    write,
)


def curves(
    lines: Mapping[str, Sequence[float]],
    x: Sequence[float],
    xlabel: str,
    ylabel: str,
    log: str = "",
    ylim: Pair | None = None,
    plain: Collection[str] = (),
) -> Figure:
    """One line per entry of `lines` over a common `x`, named in the order of their ends.

    Args:
        lines: Name and values of each line; NaN where it has none.
        x: Where the values are.
        xlabel: Below the x axis.
        ylabel: Beside the y axis.
        log: The axes that are logarithmic: `"x"`, `"y"` or `"xy"`.
        ylim: Limits of the y axis.
        plain: Names of lines without markers, for what is not measured over `x`, such as a value to
            compare with.

    Example:
        >>> lines = {"zeroed": [2.3, 1.1], "forgotten": [2.3, 4.0]}
        >>> figure = curves(lines, [1, 2], "update", "loss")
    """
    figure, (axis,) = new_figure()
    drawn = []
    for (name, y), (color, dashes, marker) in zip(lines.items(), cycle(LOOKS)):
        drawn += axis.plot(x, y, color=color, linestyle=dashes, marker="" if name in plain else marker,
                           markevery=max(1, len(y) // 12), markersize=5, label=name)  # fmt: skip
    name_axis(axis, xlabel, ylabel)
    if "x" in log:
        axis.set_xscale("log", base=2)
    if "y" in log:
        axis.set_yscale("log")
    axis.set_ylim(ylim)
    if len(drawn) > 1:
        drawn.sort(key=lambda line: [y for y in line.get_ydata() if isfinite(y)][-1], reverse=True)
        names = [fill(line.get_label(), 18, break_on_hyphens=False) for line in drawn]
        figure.legend(drawn, names, loc="outside right center", handlelength=3, **LEGEND)
    return figure


def arrows(gradients: Sequence[Pair], total: Pair, mean: Pair) -> Figure:
    """Gradients of two weights, head to tail, with their sum and their mean from the origin."""
    figure, (axis,) = new_figure(width=6.5, height=4.2)
    corners = [(0.0, 0.0)]
    for number, (dx, dy) in enumerate(gradients, start=1):
        x, y = corners[-1]
        corners.append((x + dx, y + dy))
        arrow(axis, (x, y), corners[-1], BLUE, 1.6)
        away = 11 / (hypot(dx, dy) or 1.0)  # points, to the right of the arrow
        write(axis, f"$g_{number}$", (x + dx / 2, y + dy / 2), (dy * away, -dx * away), va="center", fontsize=FONT,
               color=BLUE)  # fmt: skip
    for end, color, dashes, name in ((total, RED, "--", "sum"), (mean, GREEN, "-", "mean")):
        arrow(axis, (0, 0), end, color, 2.4, dashes)
        write(axis, name, end, (-6, 6), ha="right", fontsize=FONT, color=ink(color))
    axis.update_datalim([*corners, total, mean])
    axis.margins(0.15)
    axis.axhline(0, color=INK, linewidth=0.5)
    axis.axvline(0, color=INK, linewidth=0.5)
    name_axis(axis, "gradient of the first weight", "gradient of the second weight")
    return figure
