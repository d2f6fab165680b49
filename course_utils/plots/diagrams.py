"""Drawings: how gradients flow back and add up, and which orders train."""

from collections.abc import Mapping, Sequence
from math import cos, hypot, radians, sin

from matplotlib.figure import Figure
from matplotlib.patches import Arc

from course_utils.plots.look import BLUE, FONT, GREEN, ORANGE, RED, Pair, arrow, draw_only, name_axis, new_figure, write

_CALLS = {"f": "forward", "b": "backward", "s": "step", "z": "zero"}
_BESIDE = ((14, 14), "left", "bottom"), ((0, -14), "center", "top"), ((-14, 14), "right", "bottom")  # shift, ha, va
_BOX = {"boxstyle": "round,pad=0.35"}


def backward_passes(
    positions: Mapping[str, Pair], calls: Mapping[str, tuple[Sequence[tuple[str, str, str]], Mapping[str, str]]]
) -> Figure:
    """Backward passes through a small graph, an arrow for each flow, with one panel per call.

    Args:
        positions: Position of each value, from left to right as the forward pass computes them.
        calls: By the title of its panel, the flows of a call, each as (from, to, words), and words
            beside a value.

    Example:
        calls = {"loss.backward()": ([("loss", "a", "2"), ("loss", "a", "2")], {"a": ".grad = 4"})}
        backward_passes({"a": (0, 0), "loss": (3, 0)}, calls)
    """
    figure, axes = new_figure(width=5, height=1.5 * len(calls), rows=len(calls))
    for axis, (title, (flows, words)) in zip(axes, calls.items(), strict=True):
        edges = [flow[:2] for flow in flows]
        for k, (start, end, amount) in enumerate(flows):
            (x1, y1), (x2, y2) = positions[start], positions[end]
            bend = 0.3 * (2 * edges[:k].count((start, end)) - edges.count((start, end)) + 1)
            look = {"arrowstyle": "-|>", "connectionstyle": f"arc3,rad={bend}", "color": BLUE, "lw": 1.8}
            axis.annotate("", (x2, y2), (x1, y1), arrowprops=look | {"shrinkA": 22, "shrinkB": 22})
            middle = (x1 + x2 + bend * (y2 - y1)) / 2, (y1 + y2 - bend * (x2 - x1)) / 2
            axis.text(*middle, amount, color=BLUE, ha="center", va="center", fontsize=FONT,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})  # fmt: skip
        for name, (x, y) in positions.items():
            fill = ORANGE if name in words else "white"
            axis.text(x, y, name, ha="center", va="center", fontsize=FONT, bbox=_BOX | {"facecolor": fill})
            write(axis, words.get(name, ""), (x, y), (-28, 0), ha="right", va="center")
        xs, ys = zip(*positions.values(), strict=True)
        draw_only(axis, title, (min(xs) - 1.9, max(xs) + 0.9), (min(ys) - 0.75, max(ys) + 0.75))
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
        write(axis, name, [x / 2 for x in end], (0, -16), fontsize=FONT, color=color)
    axis.update_datalim([*corners, total, mean])
    axis.margins(0.15)
    axis.axhline(0, color="0.5", linewidth=0.5)
    axis.axvline(0, color="0.5", linewidth=0.5)
    name_axis(axis, "gradient of the first weight", "gradient of the second weight")
    return figure


def dials(outcomes: Mapping[str, str], good: str) -> Figure:
    """Orders of a training loop's four calls, on two circles that are read clockwise.

    Only the cyclic order of the calls f, b, s and z matters. There is a circle for each way in
    which f, b and s can follow one another, with three places for z. Beside each place stand the
    four orders that begin somewhere in this loop, and their outcome.

    Args:
        outcomes: Outcome of each order, such as `"zfbs"`, in words.
        good: The outcome of those that train.
    """
    figure, axes = new_figure(width=4.2, height=5.8, rows=2)
    for axis, ring in zip(axes, ("fbs", "fsb"), strict=True):
        words = [_CALLS[letter] for letter in ring]
        train = 0
        for k in range(3):
            loop = ring[: k + 1] + "z" + ring[k + 1 :]
            begun = [loop[first:] + loop[:first] for first in range(4)]
            is_good = {outcomes[order] for order in begun} == {good}
            train += 4 * is_good
            color, dashes, width = (BLUE, "-", 7) if is_good else (RED, ":", 2)
            axis.add_patch(Arc((0, 0), 2, 2, theta1=-30 - 120 * k, theta2=90 - 120 * k, ec=color, ls=dashes, lw=width))
            at, middle = _clock(90 - 120 * k), _clock(30 - 120 * k)
            axis.text(*at, words[k], ha="center", va="center", fontsize=FONT, bbox=_BOX | {"facecolor": "white"})
            fill = ORANGE if is_good else "white"
            axis.text(*middle, "zero", ha="center", va="center", fontsize=FONT, bbox=_BOX | {"facecolor": fill})
            says = f"{outcomes[loop]}\n{begun[0]} {begun[1]}\n{begun[2]} {begun[3]}"
            shift, ha, va = _BESIDE[k]
            write(axis, says, middle, shift, ha=ha, va=va, family="monospace")
        write(axis, f"{train} of 12\ntrain", (0, 0), (0, 0), va="center", fontsize=FONT, weight="bold")
        draw_only(axis, f"clockwise: {', '.join(words)}", (-2.55, 2.55), (-2.1, 1.55))
    return figure


def _clock(degrees: float) -> Pair:
    """A point of the unit circle."""
    return cos(radians(degrees)), sin(radians(degrees))
