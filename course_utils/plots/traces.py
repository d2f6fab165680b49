"""The gradient ledger: the events of `.grad`."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import TICKUP
from matplotlib.transforms import offset_copy

from course_utils.plots.look import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    RED,
    SHADE,
    SMALL,
    name_axis,
    new_figure,
    write,
)
from course_utils.record import Event, Trace

_MARKS = (  # kind of event, marker, colour, label
    ("backward", "^", BLUE, "backward: adds"),
    ("change", "X", GREEN, "changed in place"),
    ("step", "D", RED, "step: reads"),
    ("zero", "o", ORANGE, "zeroed"),
)
_EVENTS = "events of the training loop, in order; updates are shaded"


def ledger(trace: Trace, lanes: Mapping[str, str] | None = None) -> Figure:
    """The gradient ledger: the events of `.grad`, with one lane per optimizer.

    The line is the norm of all gradients in the lane. It rises with a backward pass and falls to 0
    when the gradients are zeroed; a step leaves it alone. The brackets below number the windows.
    Updates are shaded: what follows the last pass of a window, up to the first pass of the next.

    Args:
        trace: From `record()`.
        lanes: Which lanes to draw, in this order, each with the name to show; by default all, under
            their own names.

    Raises:
        ValueError: If the trace has no events.

    Example:
        >>> norms = {"backward": 1.0, "step": 1.0, "zero": 0.0}
        >>> events = [Event(kind, "SGD", norm) for kind, norm in norms.items()]
        >>> figure = ledger(Trace(events))
    """
    names = {lane: lane for lane in trace.lanes} if lanes is None else lanes
    return _draw([(name, trace, lane) for lane, name in names.items()])


def ledgers(traces: Mapping[str, Trace]) -> Figure:
    """Ledgers of several loops, one below the other on one scale.

    Args:
        traces: By the title of its panel, what `record()` saw of each loop; of several lanes the
            one with a step.

    Raises:
        ValueError: If no trace has events.

    Example:
        >>> norms = {"backward": 1.0, "step": 1.0, "zero": 0.0}
        >>> trace = Trace([Event(kind, "SGD", norm) for kind, norm in norms.items()])
        >>> figure = ledgers({"with zero_grad()": trace, "without": Trace(trace.events[:2])})
    """
    return _draw([(title, trace, None) for title, trace in traces.items()])


def _draw(panels: list[tuple[str, Trace, str | None]]) -> Figure:
    """Draws a lane of a trace into each panel, and explains the marks that occur."""
    kinds = {event.kind for _, trace, _ in panels for event in trace.events}
    if not kinds:
        raise ValueError("the trace has no events to draw: did a loop run inside `with record() as trace:`?")
    figure, axes = new_figure(height=0.75 + 1.75 * len(panels), rows=len(panels), sharey=True)
    for axis, (title, trace, lane) in zip(axes, panels, strict=True):
        own = {event.lane for event in trace.on(lane)}
        events = {place: event for place, event in enumerate(trace.events) if event.lane in own}
        axis.step(list(events), [event.norm for event in events.values()], where="post", color=BLACK, linewidth=1.4,
                  zorder=1)  # fmt: skip
        for kind, marker, color, words in _MARKS:
            if kind in kinds:
                x = [place for place, event in events.items() if event.kind == kind]
                axis.scatter(x, [events[place].norm for place in x], marker=marker, s=46, color=color, label=words,
                             zorder=2, linewidths=1.2, edgecolors=BLACK)  # fmt: skip
        axis.set(xlim=(-1, len(trace.events)), xticks=[])
        axis.margins(y=0.1)
        _number(axis, events)
        name_axis(axis, _EVENTS if axis is axes[-1] else "", "norm of .grad", title)
    axes[-1].xaxis.labelpad = 25  # below the numbers
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, **SMALL)
    return figure


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
        passes = [place for place in places if events[place].kind == "backward"]
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
