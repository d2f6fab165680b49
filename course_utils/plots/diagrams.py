"""Words and boxes: how gradients flow back, and which orders train."""

from collections.abc import Collection, Mapping, Sequence
from math import cos, radians, sin

from matplotlib.figure import Figure
from matplotlib.patches import Arc

from course_utils.plots.look import (
    BLACK,
    BLUE,
    FONT,
    ORANGE,
    RED,
    Pair,
    ink,
    name_axis,
    new_figure,
    write,
)

_CALLS = {"f": "forward", "b": "backward", "s": "step", "z": "zero"}
_BESIDE = ((14, 14), "left", "bottom"), ((0, -14), "center", "top"), ((-14, 14), "right", "bottom")  # shift, ha, va
_BOX = {"boxstyle": "round,pad=0.35", "edgecolor": BLACK}


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


def dials(outcomes: Mapping[str, str], good: str) -> Figure:
    """Orders of a training loop's four calls, on two circles that are read clockwise.

    Only the cyclic order of the calls f, b, s and z matters. There is a circle for each way in which f, b and s can
    follow one another, with three places for z. Beside each place stand the four orders that begin somewhere in this
    loop, and their outcome.

    Args:
        outcomes: Outcome of each order, such as `"zfbs"`, in words.
        good: The outcome of those that train.
    """
    figure, axes = new_figure(height=3, columns=2)
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
        axis.text(0, 0, f"{train} of 12\ntrain", ha="center", va="center", fontsize=FONT, weight="bold")
        axis.set(xlim=(-2.55, 2.55), ylim=(-2.1, 1.55), aspect="equal")
        name_axis(axis, title=f"clockwise: {', '.join(words)}")
        axis.axis("off")
        for text in axis.texts:
            text.set_in_layout(False)  # the limits leave room for it
    return figure


def _clock(degrees: float) -> Pair:
    """A point of the unit circle."""
    return cos(radians(degrees)), sin(radians(degrees))
