"""The gradient ledger: what happened to `.grad`, event by event."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from textwrap import fill
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import TICKUP
from matplotlib.transforms import offset_copy

from course_utils.plots.look import (
    BLACK,
    BLUE,
    FONT,
    GREEN,
    ORANGE,
    RED,
    SHADE,
    SKY,
    SMALL,
    legend_above,
    name_axis,
    new_figure,
    write,
)
from course_utils.recording.trace import Event, Trace

_MARKS = (  # kind of event, marker, colour, label
    ("forward", "|", BLACK, "forward"),
    ("backward", "^", BLUE, "backward: adds"),
    ("change", "X", GREEN, "changed in place"),
    ("step", "D", RED, "step: reads"),
    ("zero", "o", ORANGE, "zeroed"),
)
_LINE = "norm of .grad"
_EVENTS = "events of the training loop, in order; updates are shaded"

Placed = Mapping[int, Event]  # events, by their place in the trace


class Bracket(NamedTuple):
    """Where a window is drawn, and the update that ends it.

    Args:
        number: Which update of its lane it leads to, counted from 1; None if no step follows.
        first: The place of its first event.
        last: The place of the last event before its update.
        update: From which place to which the update reaches; None if there is none.
    """

    number: int | None
    first: int
    last: int
    update: tuple[int, int] | None


def brackets_of(events: Placed) -> Iterator[Bracket]:
    """The windows of a lane: of each its passes, and what follows the last of them."""
    windows: dict[int, list[int]] = {}
    for place, event in events.items():
        windows.setdefault(event.window, []).append(place)
    for number, places in windows.items():
        passes = [place for place in places if events[place].kind in ("forward", "backward")]
        closing = [place for place in places if place > max(passes, default=-1)]
        first, last = (passes[0], passes[-1]) if passes else (closing[0], closing[0])
        if any(events[place].kind == "step" for place in places):
            yield Bracket(number, first, last, (closing[0], closing[-1]))
        elif any(events[place].kind == "backward" for place in passes):
            yield Bracket(None, first, last, None)


def ledger(trace: Trace, lanes: Mapping[str, str] | None = None, title: str = "") -> Figure:
    """The gradient ledger: what happened to `.grad`, event by event, with one lane per optimizer.

    The line is the norm of all gradients in the lane. It rises with a backward pass and falls to 0 when the gradients
    are zeroed; a step leaves it alone. The brackets below number the windows. Updates are shaded: what follows the
    last pass of a window, up to the first pass of the next.

    Args:
        trace: From `record()`.
        lanes: Which lanes to draw, in this order, each with the name to show; by default all, under their own names.
        title: Above the first lane.

    Raises:
        ValueError: If the trace has no events.

    Example:
        >>> events = [Event("backward", "SGD", 1.0), Event("step", "SGD", 1.0), Event("zero", "SGD", 0.0)]
        >>> figure = ledger(Trace(events), title="one window")
    """
    if not trace.events:
        raise ValueError("the trace has no events to draw: did a loop run inside `with record() as trace:`?")
    lanes = lanes if lanes is not None else {lane: lane for lane in trace.lanes}
    figure, axes = new_figure(height=1.1 + 2.1 * len(lanes), rows=len(lanes))
    for axis, (lane, name) in zip(axes, lanes.items(), strict=True):
        _lane(axis, trace, lane)
        axis.set_ylabel(f"{name}\n{_LINE}", fontsize=FONT)
    axes[0].set_title(title, fontsize=FONT + 1, loc="left")
    _explain(figure, axes)
    return figure


def ledgers(traces: Mapping[str, Trace]) -> Figure:
    """Ledgers of several loops, one below the other on one scale.

    Args:
        traces: By the title of its panel, what `record()` saw of each loop; of several lanes the one with a step.

    Example:
        >>> trace = Trace([Event("backward", "SGD", 1.0), Event("step", "SGD", 1.0), Event("zero", "SGD", 0.0)])
        >>> figure = ledgers({"with zero_grad()": trace, "without": Trace(trace.events[:2])})
    """
    figure, axes = new_figure(height=0.75 + 1.75 * len(traces), rows=len(traces))
    tops = []
    for axis, (title, trace) in zip(axes, traces.items(), strict=True):
        tops.append(_lane(axis, trace))
        axis.set_ylabel(_LINE, fontsize=FONT)
        axis.set_title(title, fontsize=FONT, loc="left")
    for axis in axes:
        axis.set_ylim(-0.08 * max(tops), 1.12 * max(tops))
    _explain(figure, axes)
    return figure


def silhouettes(loops: Mapping[str, tuple[Trace, Trace, int]], columns: int = 3) -> Figure:
    """The shapes that bugs leave in the ledger: small ledgers, each over the area of its fixed twin's.

    Args:
        loops: By the bug's name, what `record()` saw of the buggy loop and of the fixed one, and how many micro-batches
            to draw.
        columns: How many ledgers stand side by side.

    Example:
        >>> fixed = Trace([Event("backward", "SGD", 1.0), Event("step", "SGD", 1.0), Event("zero", "SGD", 0.0)])
        >>> buggy = Trace([event._replace(norm=4 * event.norm) for event in fixed.events])
        >>> figure = silhouettes({"Never divides by N": (buggy, fixed, 1)})
    """
    rows = -(-len(loops) // columns)
    figure, axes = new_figure(height=0.7 + 1.75 * rows, rows=rows, columns=columns)
    for axis in axes[len(loops) :]:
        axis.remove()
    for place, (axis, (name, (buggy, fixed, many))) in enumerate(zip(axes, loops.items(), strict=False)):
        x, y, _ = zip(*_points(fixed, many), strict=True)
        axis.fill_between(x, y, step="post", color=SKY, alpha=0.45, linewidth=0, label="the fixed loop")
        x, y, kinds = zip(*_points(buggy, many), strict=True)
        axis.step(x, y, where="post", color=BLACK, linewidth=1.6, label="the buggy loop")
        steps = [k for k, kind in enumerate(kinds) if kind == "step"]
        axis.plot([x[k] for k in steps], [y[k] for k in steps], "D", color=RED, markeredgecolor=BLACK, markersize=6,
                  label="step: reads")  # fmt: skip
        axis.set(xticks=[], yticks=[], ylim=(0, 1.15 * axis.dataLim.y1))
        last_row, first_column = place + columns >= len(loops), place % columns == 0
        name_axis(
            axis,
            "micro-batches, in order" * last_row,
            _LINE * first_column,
            fill(name, 26, break_on_hyphens=False),
        )
    legend_above(figure, 3, *axes[0].get_legend_handles_labels())
    return figure


def _points(trace: Trace, many: int) -> list[tuple[float, float, str]]:
    """Where each event stands, and its norm and kind: the k-th backward pass at k, what follows it before k + 1.

    So a buggy loop and its fixed twin meet micro-batch by micro-batch, however many events lie between.
    """
    events = [event for event in trace.on() if event.kind != "forward"]
    starts = [place for place, event in enumerate(events) if event.kind == "backward"]
    points = []
    edges = [*starts, len(events)][: many + 1]
    for k, (start, end) in enumerate(pairwise(edges)):
        points += [(k + j / (end - start), e.norm, e.kind) for j, e in enumerate(events[start:end])]
    return points


def _lane(axis: Axes, trace: Trace, lane: str | None = None) -> float:
    """Draws line, marks and windows, and returns the greatest height."""
    places = {id(event): place for place, event in enumerate(trace.events)}
    events = {places[id(event)]: event for event in trace.on(lane)}
    heights = {place: event.held if event.norm is None else event.norm for place, event in events.items()}
    top = max(filter(isfinite, heights.values()), default=0.0) or 1.0
    axis.step(list(heights), list(heights.values()), where="post", color=BLACK, linewidth=1.4, zorder=1)
    for kind, marker, color, words in _MARKS:
        x = [place for place, event in events.items() if event.kind == kind]
        y = [0.0 if kind == "forward" else heights[place] for place in x]
        if x:
            axis.scatter(x, y, marker=marker, s=46, color=color, label=words, zorder=2, linewidths=1.2,
                         edgecolors=None if marker == "|" else BLACK)  # fmt: skip
    axis.set(xlim=(-1, len(trace.events)), ylim=(-0.08 * top, 1.12 * top), xticks=[])
    if all(event.norm is None for event in events.values()):  # counts
        axis.yaxis.get_major_locator().set_params(integer=True)
    _number(axis, list(brackets_of(events)))
    return top


def _number(axis: Axes, found: Sequence[Bracket]) -> None:
    """A numbered bracket below each window, dashed if no update follows, and a shade behind each update."""
    line, text = (offset_copy(axis.get_xaxis_transform(), axis.figure, y=-down, units="points") for down in (8, 11))
    for window in found:
        ends = window.first - 0.35, window.last + 0.35
        axis.plot(ends, [0, 0], color=BLACK, linewidth=1, linestyle="-" if window.update else (0, (2, 2)),
                  marker=TICKUP, markersize=5, transform=line, clip_on=False, gid="window", scalex=False,
                  scaley=False)  # fmt: skip
        words = str(window.number) if window.update else "no update"
        axis.text(sum(ends) / 2, 0, words, transform=text, ha="center", va="top", **SMALL)
        if window.update:
            axis.axvspan(window.update[0] - 0.5, window.update[1] + 0.5, facecolor=SHADE, zorder=0,
                         linewidth=0)  # fmt: skip
    if found:
        write(axis, "window", (0, 0), (-8, -11), xycoords="axes fraction", ha="right", va="top")


def _explain(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all marks, and what the x axis is."""
    entries: dict[str, object] = {}
    for axis in axes:
        entries |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    order = [words for *_, words in _MARKS if words in entries]
    axes[-1].set_xlabel(_EVENTS, fontsize=FONT, labelpad=25)  # below the numbers
    legend_above(figure, 5, [entries[words] for words in order], order)
