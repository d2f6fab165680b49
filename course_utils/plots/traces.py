"""The gradient ledger: the events of `.grad`."""

from collections.abc import Mapping, Sequence
from math import isfinite

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
    SMALL,
    legend_above,
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


def ledger(trace: Trace, lanes: Mapping[str, str] | None = None, title: str = "") -> Figure:
    """The gradient ledger: the events of `.grad`, with one lane per optimizer.

    The line is the norm of all gradients in the lane. It rises with a backward pass and falls to 0
    when the gradients are zeroed; a step leaves it alone. The brackets below number the windows.
    Updates are shaded: what follows the last pass of a window, up to the first pass of the next.

    Args:
        trace: From `record()`.
        lanes: Which lanes to draw, in this order, each with the name to show; by default all, under
            their own names.
        title: Above the first lane.

    Raises:
        ValueError: If the trace has no events.

    Example:
        >>> norms = {"backward": 1.0, "step": 1.0, "zero": 0.0}
        >>> events = [Event(kind, "SGD", norm) for kind, norm in norms.items()]
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
        traces: By the title of its panel, what `record()` saw of each loop; of several lanes the
            one with a step.

    Example:
        >>> norms = {"backward": 1.0, "step": 1.0, "zero": 0.0}
        >>> trace = Trace([Event(kind, "SGD", norm) for kind, norm in norms.items()])
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


def _lane(axis: Axes, trace: Trace, lane: str | None = None) -> float:
    """Draws line, marks and windows, and returns the greatest height."""
    places = {id(event): place for place, event in enumerate(trace.events)}
    events = {places[id(event)]: event for event in trace.on(lane)}
    heights = {place: event.norm for place, event in events.items()}
    top = max(filter(isfinite, heights.values()), default=0.0) or 1.0
    axis.step(list(heights), list(heights.values()), where="post", color=BLACK, linewidth=1.4, zorder=1)
    for kind, marker, color, words in _MARKS:
        x = [place for place, event in events.items() if event.kind == kind]
        y = [0.0 if kind == "forward" else heights[place] for place in x]
        if x:
            axis.scatter(x, y, marker=marker, s=46, color=color, label=words, zorder=2, linewidths=1.2,
                         edgecolors=None if marker == "|" else BLACK)  # fmt: skip
    axis.set(xlim=(-1, len(trace.events)), ylim=(-0.08 * top, 1.12 * top), xticks=[])
    _number(axis, events)
    return top


def _number(axis: Axes, events: Mapping[int, Event]) -> None:
    """Numbers the windows in brackets, dashed if no update follows, and shades the updates.

    Args:
        axis: The axes to draw into.
        events: The events of a lane, by their index in the trace.
    """
    line, text = (offset_copy(axis.get_xaxis_transform(), axis.figure, y=-down, units="points") for down in (8, 11))
    windows: dict[int, list[int]] = {}
    for place, event in events.items():
        windows.setdefault(event.window, []).append(place)
    for number, places in windows.items():
        passes = [place for place in places if events[place].kind in ("forward", "backward")]
        closing = [place for place in places if place > max(passes, default=-1)]
        kinds = {events[place].kind for place in places}
        if not kinds & {"backward", "step"}:
            continue
        ends = (passes or closing)[0] - 0.35, (passes or closing[:1])[-1] + 0.35
        axis.plot(ends, [0, 0], color=BLACK, linewidth=1, linestyle="-" if "step" in kinds else (0, (2, 2)),
                  marker=TICKUP, markersize=5, transform=line, clip_on=False, gid="window", scalex=False,
                  scaley=False)  # fmt: skip
        words = str(number) if "step" in kinds else "no update"
        axis.text(sum(ends) / 2, 0, words, transform=text, ha="center", va="top", **SMALL)
        if "step" in kinds:
            axis.axvspan(closing[0] - 0.5, closing[-1] + 0.5, facecolor=SHADE, zorder=0, linewidth=0)
    write(axis, "window", (0, 0), (-8, -11), xycoords="axes fraction", ha="right", va="top")


def _explain(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all marks, and what the x axis is."""
    entries: dict[str, object] = {}
    for axis in axes:
        entries |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    order = [words for *_, words in _MARKS if words in entries]
    axes[-1].set_xlabel(_EVENTS, fontsize=FONT, labelpad=25)  # below the numbers
    legend_above(figure, 5, [entries[words] for words in order], order)
