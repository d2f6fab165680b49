"""Words and boxes: how gradients flow back, and which orders train."""

from collections.abc import Collection, Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.plots.look import (
    BLACK,
    BLUE,
    FONT,
    ORANGE,
    PALE,
    SKY,
    Pair,
    ink,
    name_axis,
    new_figure,
    write,
)


def backward_passes(
    places: Mapping[str, Pair],
    calls: Mapping[str, tuple[Sequence[tuple[str, str, float]], Mapping[str, str]]],
    leaves: Collection[str],
) -> Figure:
    """Backward passes through a small computation graph, with the gradients on its edges.

    There is one panel per call. Its arrows are what this call sends back; edges of the other calls
    are thin lines.

    Args:
        places: Position of each value, from left to right as the forward pass computes them.
        calls: By the title of its panel, the flows of a call, each as (from, to, amount), and words
            beside a value.
        leaves: The values whose `.grad` outlives a call. Their words have a solid frame, the
            others' a dashed one.

    Example:
        calls = {"loss.backward()": ([("loss", "a", 6.0)], {"a": "6"})}
        backward_passes({"a": (0, 0), "loss": (1, 0)}, calls, ["a"])
    """
    figure, axes = new_figure(height=1.95 * len(calls), rows=len(calls))
    edges = {(start, end) for flows, _ in calls.values() for start, end, _ in flows}
    for axis, (title, (flows, words)) in zip(axes, calls.items(), strict=True):
        for start, end in sorted(edges):
            both = zip(places[start], places[end], strict=True)
            axis.plot(*both, color=BLACK, linewidth=0.6, linestyle=":", zorder=0)
        amounts: dict[tuple[str, str], list[str]] = {}
        for start, end, amount in flows:
            amounts.setdefault((start, end), []).append(f"{amount:g}")
        for (start, end), parts in amounts.items():
            look = {"arrowstyle": "-|>", "color": BLUE, "lw": 1.8, "shrinkA": 22, "shrinkB": 16}
            axis.annotate("", places[end], places[start], arrowprops=look)
            middle = [(one + other) / 2 for one, other in zip(places[start], places[end], strict=True)]
            axis.text(*middle, " + ".join(parts), color=ink(BLUE), ha="center", va="center", fontsize=FONT,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})  # fmt: skip
        for name, place in places.items():
            shape = {"boxstyle": "round,pad=0.5", "facecolor": ORANGE if name in leaves else "white"}
            axis.text(*place, name, ha="center", va="center", fontsize=FONT, bbox=shape | {"edgecolor": BLACK})
        for name, text in words.items():
            frame = {"facecolor": "white", "edgecolor": BLACK, "pad": 4, "linestyle": "-" if name in leaves else "--"}
            if name in leaves:
                write(axis, text, places[name], (-24, 0), ha="right", va="center", bbox=frame)
                write(axis, "stays after the call", places[name], (-24, -24), ha="right", style="italic")
            else:
                write(axis, text, places[name], (0, 22), va="bottom", bbox=frame)
                write(axis, "lasts for this call", places[name], (0, 44), style="italic")
        xs, ys = zip(*places.values(), strict=True)
        axis.set(xlim=(min(xs) - 0.9, max(xs) + 0.3), ylim=(min(ys) - 0.3, max(ys) + 0.9))
        axis.set_title(title, fontsize=FONT, loc="left", family="monospace")
        axis.axis("off")
    return figure


def orders(loops: Sequence[Sequence[str]], outcomes: Mapping[str, str], title: str = "") -> Figure:
    """Orders of a training loop's calls: a row per loop, begun at each call, and its outcome.

    A band leads from each backward pass, the letter b, to the next step, the letter s.

    Args:
        loops: Orders such as `"zfbs"`; those of a row are one loop.
        outcomes: Outcome of each order, in words; that of the first order is drawn as good.
        title: Above the orders.
    """
    figure, (axis,) = new_figure(height=0.5 * len(loops) + 0.4)
    for y, row in enumerate(loops):
        for x, order in enumerate(row):
            good = outcomes[order] == outcomes[loops[0][0]]
            color = PALE if good else "white"
            axis.add_patch(Rectangle((x, y - 0.39), 0.92, 0.78, facecolor=color, edgecolor=BLACK, linewidth=1))
            start, end = order.index("b") - 0.35, order.index("s") + 0.35
            for band in [(start, end)] if start < end else [(start, 3.75), (-0.75, end)]:
                xs = [x + 0.16 + 0.2 * place for place in band]
                axis.plot(xs, [y, y], color=SKY if good else ORANGE, linewidth=14, solid_capstyle="butt")
            for place, letter in enumerate(order):
                at = (x + 0.16 + 0.2 * place, y)
                weight = "bold" if letter == "z" else "normal"
                axis.text(*at, letter, ha="center", va="center", weight=weight, fontsize=FONT, family="monospace")
        axis.text(len(row) + 0.04, y, outcomes[row[0]], va="center", fontsize=FONT)
    axis.set(xlim=(-0.02, max(map(len, loops)) + 1.3), ylim=(len(loops) - 0.5, -0.5))
    name_axis(axis, title=title)
    axis.axis("off")
    return figure
