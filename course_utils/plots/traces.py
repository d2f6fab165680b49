"""The gradient ledger: what each call of a training loop leaves in `.grad`."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.plots.look import BLUE, FONT, INK, LEGEND, PALE, RED, SKY, SMALL, name_axis, new_figure
from course_utils.record import Event, Trace

_BLOCKS = {  # what a block of a pile is, and its look
    "backward adds": {"fc": SKY, "ec": BLUE, "lw": 1.4},
    "still in .grad": {"fc": PALE, "ec": BLUE, "lw": 0.7},
    "step reads": {"fill": False, "ec": RED, "lw": 2.4},
    "zeroed": {"fill": False, "ec": "0.5", "ls": (0, (1, 2)), "lw": 1.4},
}


def ledger(trace: Trace, lanes: Mapping[str, str] | None = None) -> Figure:
    """The gradient ledger: `.grad` after each call of a loop, with one lane per optimizer.

    It is a pile of blocks. A backward call drops a block with its number. A step frames the pile
    that it reads; the number below the frame says how many blocks that is. Zeroing leaves an empty
    place.

    Args:
        trace: From `record()`.
        lanes: Which lanes to draw, in this order, each with the name to show; by default all, under
            their own names.

    Raises:
        ValueError: If the trace has no events.

    Example:
        >>> events = [Event("backward", "SGD", held=1), Event("step", "SGD", held=1)]
        >>> figure = ledger(Trace(events))
    """
    lanes = lanes if lanes is not None else {lane: lane for lane in trace.lanes}
    return _draw([(name, trace, lane) for lane, name in lanes.items()])


def ledgers(traces: Mapping[str, Trace]) -> Figure:
    """Ledgers of several loops, one below the other, with blocks of one size.

    Args:
        traces: By the title of its panel, what `record()` saw of each loop; of several lanes the
            one with a step.

    Example:
        >>> trace = Trace([Event("backward", "SGD", held=1), Event("step", "SGD", held=1)])
        >>> figure = ledgers({"never zeroed": trace})
    """
    return _draw([(title, trace, None) for title, trace in traces.items()])


def _draw(panels: list[tuple[str, Trace, str | None]]) -> Figure:
    calls = []
    for _, trace, lane in panels:
        own = {id(event) for event in trace.on(lane)}
        seen = [event for event in trace.events if event.kind != "change"]
        calls.append([(index, event) for index, event in enumerate(seen) if id(event) in own])
    if not any(calls):
        raise ValueError("the trace has no events to draw: did a loop run inside `with record() as trace:`?")
    heights = [max([1, *(event.held for _, event in events)]) for events in calls]
    spans = [height + 1.3 for height in heights]  # with the numbers below; in all panels a block has one size
    figure, axes = new_figure(5.6, 0.75 + sum(0.35 + 0.25 * span for span in spans), len(spans), height_ratios=spans)
    last = max(index for events in calls for index, _ in events)
    for axis, (title, *_), events, height in zip(axes, panels, calls, heights, strict=True):
        count = 0
        for index, event in events:
            count += event.kind == "backward"
            _pile(axis, index, event, range(count - event.held + 1, count + 1))
        axis.axhline(0, color=INK, linewidth=1.2)
        axis.set(xlim=(-0.7, last + 0.7), ylim=(-1.1, height + 0.2), xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        name_axis(axis, "below each step: how many gradients it reads" if axis is axes[-1] else "", title=title)
    blocks = [Rectangle((0, 0), 1, 1, **look) for look in _BLOCKS.values()]
    figure.legend(blocks, _BLOCKS, loc="outside upper center", ncols=4, handlelength=1.2, columnspacing=1.2, **LEGEND)
    return figure


def _pile(axis: Axes, index: int, event: Event, numbers: range) -> None:
    """Draws the pile after a call: its blocks, and a frame or an empty place."""
    for y, number in enumerate(numbers):
        look = _BLOCKS["backward adds" if event.kind == "backward" and number == numbers[-1] else "still in .grad"]
        axis.add_patch(Rectangle((index - 0.44, y + 0.04), 0.88, 0.92, **look))
        axis.text(index, y + 0.5, str(number), ha="center", va="center_baseline", **SMALL)
    if event.kind == "step":
        axis.add_patch(Rectangle((index - 0.47, 0), 0.94, max(event.held, 0.1), zorder=3, **_BLOCKS["step reads"]))
        axis.text(index, -0.2, str(event.held), ha="center", va="top", fontsize=FONT, weight="bold", color=RED)
    elif event.kind == "zero":
        axis.add_patch(Rectangle((index - 0.4, 0.1), 0.8, 0.8, **_BLOCKS["zeroed"]))
