"""The gradient ledger: the events of `.grad`."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import TICKUP
from matplotlib.patches import Rectangle
from matplotlib.transforms import offset_copy

from course_utils.plots.look import (
    BLACK,
    BLUE,
    FONT,
    GREEN,
    ORANGE,
    PALE,
    RED,
    SHADE,
    SKY,
    SMALL,
    ink,
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
_BLOCKS = {  # what a block of a pile is, and its look
    "backward adds": {"fc": SKY, "ec": BLUE, "lw": 1.4},
    "still in .grad": {"fc": PALE, "ec": BLUE, "lw": 0.7},
    "step reads": {"fill": False, "ec": RED, "lw": 2.4},
    "zeroed": {"fill": False, "ec": "0.5", "ls": (0, (1, 2)), "lw": 1.4},
}
_NOTHING = "the trace has no events to draw: did a loop run inside `with record() as trace:`?"
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


def piles(traces: Mapping[str, Trace]) -> Figure:
    """What is in `.grad` after each call of a loop, as a pile of blocks; one panel per loop.

    A backward call drops a block with its number. A step frames the pile that it reads; the number
    below the frame says how many blocks that is. Zeroing leaves an empty place.

    Args:
        traces: By the title of its panel, what `record()` saw of each loop; of several lanes the
            one with a step.

    Raises:
        ValueError: If no trace has events.

    Example:
        >>> events = [Event("backward", "SGD", held=1), Event("step", "SGD", held=1), Event("zero", "SGD")]
        >>> figure = piles({"with zero_grad()": Trace(events)})
    """
    calls = {title: [event for event in trace.on() if event.kind != "change"] for title, trace in traces.items()}
    if not any(calls.values()):
        raise ValueError(_NOTHING)
    heights = [max([1, *(event.held for event in events)]) for events in calls.values()]
    spans = [height + 1.3 for height in heights]  # with the numbers below; in all panels a block has one size
    figure, axes = new_figure(5.6, 0.75 + sum(0.35 + 0.25 * span for span in spans), len(spans), height_ratios=spans)
    for axis, (title, events), height in zip(axes, calls.items(), heights, strict=True):
        count = 0
        for place, event in enumerate(events):
            count += event.kind == "backward"
            _pile(axis, place, event, range(count - event.held + 1, count + 1))
        axis.axhline(0, color=BLACK, linewidth=1.2)
        axis.set(xlim=(-0.7, max(map(len, calls.values())) - 0.3), ylim=(-1.1, height + 0.2), xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        name_axis(axis, "below each step: how many gradients it reads" if axis is axes[-1] else "", title=title)
    seen = {event.kind for events in calls.values() for event in events}
    kinds = {
        name: Rectangle((0, 0), 1, 1, **look) for name, look in _BLOCKS.items() if name != "zeroed" or "zero" in seen
    }
    figure.legend(kinds.values(), kinds, loc="outside upper center", ncols=4, frameon=False, handlelength=1.2,
                  columnspacing=1.2, **SMALL)  # fmt: skip
    return figure


def _pile(axis: Axes, place: int, event: Event, numbers: range) -> None:
    """Draws the pile after a call: its blocks, and a frame or an empty place."""
    for y, number in enumerate(numbers):
        look = _BLOCKS["backward adds" if event.kind == "backward" and number == numbers[-1] else "still in .grad"]
        axis.add_patch(Rectangle((place - 0.44, y + 0.04), 0.88, 0.92, **look))
        axis.text(place, y + 0.5, str(number), ha="center", va="center_baseline", **SMALL)
    if event.kind == "step":
        axis.add_patch(Rectangle((place - 0.47, 0), 0.94, max(event.held, 0.1), zorder=3, **_BLOCKS["step reads"]))
        axis.text(place, -0.2, str(event.held), ha="center", va="top", fontsize=FONT, weight="bold", color=ink(RED))
    elif event.kind == "zero":
        axis.add_patch(Rectangle((place - 0.4, 0.1), 0.8, 0.8, **_BLOCKS["zeroed"]))


def _draw(panels: list[tuple[str, Trace, str | None]]) -> Figure:
    """Draws a lane of a trace into each panel, and explains the marks that occur."""
    kinds = {event.kind for _, trace, _ in panels for event in trace.events}
    if not kinds:
        raise ValueError(_NOTHING)
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
