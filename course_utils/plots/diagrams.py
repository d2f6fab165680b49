"""Drawings: how gradients flow back and add up, which orders train, and how often lines run."""

from collections.abc import Mapping, Sequence
from math import cos, hypot, radians, sin

from matplotlib.figure import Figure
from matplotlib.patches import Arc, Rectangle

from course_utils.plots import look as _look
from course_utils.plots.look import BLUE, FONT, GREEN, INK, ORANGE, RED, Pair, arrow, draw_only, name_axis, write

_CALLS = {"f": "forward", "b": "backward", "s": "step", "z": "zero"}
_BESIDE = ((14, 14), "left", "bottom"), ((0, -14), "center", "top"), ((-14, 14), "right", "bottom")  # shift, ha, va
_BOX = {"boxstyle": "round,pad=0.35"}
_BOXES = ("#F6FAFD", INK, "-"), ("#E6F2FA", GREEN, "-."), ("#D3E8F6", BLUE, "-"), ("#FBEBDC", RED, "--")


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
    figure, axes = _look.new_figure(width=5, height=1.5 * len(calls), rows=len(calls))
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
    figure, (axis,) = _look.new_figure(width=6.5, height=4.2)
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
    figure, axes = _look.new_figure(width=4.2, height=5.8, rows=2)
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
            write(axis, says, middle, shift, ha=ha, va=va, family="monospace", color=color)
        write(axis, f"{train} of 12\ntrain", (0, 0), (0, 0), va="center", fontsize=FONT, weight="bold")
        draw_only(axis, f"clockwise: {', '.join(words)}", (-2.55, 2.55), (-2.1, 1.55))
    return figure


def _clock(degrees: float) -> Pair:
    """A point of the unit circle."""
    return cos(radians(degrees)), sin(radians(degrees))


def brackets(lines: Sequence[tuple[str, int]], names: Mapping[int, str]) -> Figure:
    """The lines of a program, with a box around each block that runs another number of times than what is around it.

    Args:
        lines: Each with how often it ran. Comments at their ends aren't drawn.
        names: What a block is called that ran so often, from the outermost to the innermost; others
            are called "k times".

    Example:
        >>> figure = brackets([("for x in xs:", 4), ("    x *= 2", 3)], {3: "each x"})
    """
    looks = dict(zip(reversed(names), reversed(_BOXES), strict=False))
    levels = [(len(text) - len(text.lstrip())) // 4 for text, _ in lines]
    texts = [text.strip().partition("  #")[0] for text, _ in lines]
    wide = max(2 * level + len(text) + 9 * text.endswith(":") for level, text in zip(levels, texts, strict=True)) + 2
    figure, (axis,) = _look.new_figure(width=0.3 + 0.0735 * wide, height=0.1 + 0.19 * len(lines))
    around = [(-1, 0)]  # the level of each block that a line is in, and how often it runs
    for top, (level, text) in enumerate(zip(levels, texts, strict=True)):
        around = [block for block in around if block[0] < level]
        depth = len({times for _, times in around}) - 1
        axis.text(2 * level, top + 0.47, text, va="center", family="monospace", fontsize=FONT - 2.5,
                  color="black" if depth else INK)  # fmt: skip
        end = next((k for k in range(top + 1, len(lines)) if levels[k] <= level), len(lines))
        counts = [count for k, (_, count) in enumerate(lines) if top < k < end and levels[k] == level + 1 and count]
        around.append((level, min(counts, default=around[-1][1])))
        if (times := around[-1][1]) != around[-2][1]:
            fill, color, dashes = looks.get(times, _BOXES[0])
            left, right = 2 * level + 1, wide + 1 - depth
            look = {"fc": fill, "ec": color, "ls": dashes, "lw": 1.6, "zorder": 0.5 + depth / 10}
            axis.add_patch(Rectangle((left, top + 1), right - left, end - top - 1 - 0.05 * depth, **look))
            axis.text(right, top + 0.5, names.get(times, f"{times} times"), ha="right", va="center", color=color,
                      fontsize=FONT - 1, weight="bold")  # fmt: skip
    axis.set(xlim=(-0.3, wide + 1.3), ylim=(len(lines) + 0.1, -0.1))
    axis.axis("off")
    return figure
