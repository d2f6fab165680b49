"""Lines, tables, bars, points and pictures."""

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from math import frexp, isfinite, nan
from textwrap import fill

from matplotlib.figure import Figure

from course_utils.plots.look import BLUE, FONT, INK, LEGEND, LOOKS, RED, SMALL, Pair, name_axis, new_figure, write


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


def shares(tables: Mapping[str, Sequence[Sequence[float]]], right: float, sums: bool = False) -> Figure:
    """The shares of micro-batches in updates: a table per loop, with a row per update.

    Args:
        tables: By the name of the loop, the weight of each micro-batch in each update. It is
            written into its cell.
        right: The weight that a micro-batch should have, on which the shades depend.
        sums: Whether to write beside each row what it adds up to, bold if that isn't 1.
    """
    rows = [len(table) for table in tables.values()]
    figure, axes = new_figure(height=0.6 + 0.42 * len(rows) + 0.29 * sum(rows), rows=len(rows), height_ratios=rows)
    for axis, (name, table) in zip(axes, tables.items(), strict=True):
        columns = range(len(table[0]))
        cells = [[weight or nan for weight in weights] for weights in table]  # where there is none nothing is drawn
        axis.imshow(cells, cmap="Blues", vmin=0, vmax=2.2 * right, aspect="auto")
        for row, weights in enumerate(table):
            for column, weight in enumerate(weights):
                color = "white" if weight > 1.4 * right else "black"
                text = _rounded(weight) if weight else ""
                axis.text(column, row, text, ha="center", va="center", fontsize=FONT - 2, color=color)
        axis.hlines([row + 0.5 for row in range(len(table) - 1)], -0.5, len(columns) - 0.5, color=INK, linewidth=0.4)
        axis.vlines([column + 0.5 for column in columns[:-1]], -0.5, len(table) - 0.5, color=INK, linewidth=0.4)
        name_axis(axis, "micro-batch" if axis is axes[-1] else "", title=name)
        axis.set_yticks(range(len(table)), range(1, len(table) + 1))
        axis.set_xticks(columns, [column + 1 for column in columns] if axis is axes[-1] else [])
        axis.tick_params(length=0)
        write(axis, "update", (0, 1), (-6, 5), xycoords="axes fraction", ha="right")
        for row, total in enumerate(map(sum, table) if sums else ()):
            look = {} if _rounded(total) == "1" else {"weight": "bold", "color": RED}
            write(axis, _rounded(total), (1, row), (8, 0), xycoords=("axes fraction", "data"), ha="left", va="center",
                  **look)  # fmt: skip
        if sums:
            write(axis, "sum", (1, 1), (6, 5), xycoords="axes fraction", ha="left")
    return figure


def _rounded(weight: float) -> str:
    mantissa, exponent = frexp(weight)
    if mantissa == 0.5 and weight < 0.005:
        return f"$2^{{{exponent - 1}}}$"
    return f"{weight:.3g}" if weight < 1000 else f"{weight:,.0f}"


def error_dots(values: Mapping[str, float], limit: float, xlabel: str) -> Figure:
    """One point per entry on a logarithmic axis: a circle below `limit`, a square above it.

    0 is drawn at 1e-17.
    """
    figure, (axis,) = new_figure(height=0.9 + 0.25 * len(values))
    rows = range(len(values))
    for row, value in zip(rows, values.values(), strict=True):
        look = {"marker": "o", "color": BLUE, "mfc": "white"} if value < limit else {"marker": "s", "color": RED}
        axis.plot(max(value, 1e-17), row, linestyle="", markersize=7, markeredgewidth=1.6, **look)
    axis.hlines(rows, 1e-17, 10, color=INK, linewidth=0.3, linestyle=":", zorder=0)
    axis.axvline(limit, color=INK, linewidth=1, linestyle="--")
    for text, side, shift in (("exact", "right", -6), ("not exact", "left", 6)):
        write(axis, text, (limit, 1), (shift, 2), xycoords=("data", "axes fraction"), ha=side)
    axis.set(xscale="log", xlim=(3e-18, 10))
    axis.set_yticks(rows, list(values), **SMALL)
    axis.invert_yaxis()
    name_axis(axis, xlabel)
    return figure


def image_row(images: Sequence[Sequence[float]], titles: Sequence[object]) -> Figure:
    """A row of square images, each a flat list of pixels from 0 (white) to 1 (black)."""
    figure, axes = new_figure(height=1.3, columns=len(images))
    for axis, image, title in zip(axes, images, titles, strict=True):
        side = round(len(image) ** 0.5)
        axis.imshow([image[row * side : (row + 1) * side] for row in range(side)], cmap="Greys", vmin=0, vmax=1)
        axis.set_title(str(title), fontsize=FONT)
        axis.axis("off")
    return figure
