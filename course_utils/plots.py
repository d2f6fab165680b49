"""The course's figures. They draw what they are given and compute nothing; `show()` puts one into a notebook.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart. Every line also has its own dashes
and markers, so that a black-and-white print shows the same.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from math import frexp, hypot, isfinite

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.observe.trace import Event, Trace

BLACK, ORANGE, SKY, GREEN, BLUE, RED, PINK = "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
_LOOKS = ((BLUE, "-", "o"), (RED, "--", "s"), (GREEN, "-.", "^"), (ORANGE, ":", "D"), (PINK, (0, (5, 1)), "v"))
_FONT = 11
_SMALL = {"fontsize": _FONT - 1}
_CHARACTER = 0.0128  # the width of a bold character of a note, as a share of the lane's

Pair = tuple[float, float]


def _figure(width: float = 7.5, height: float = 3.4, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=_FONT - 1)
    return figure, axes


def _label(axis: Axes, xlabel: str = "", ylabel: str = "", title: str = "", title_size: int = _FONT) -> None:
    axis.set_xlabel(xlabel, fontsize=_FONT)
    axis.set_ylabel(ylabel, fontsize=_FONT)
    axis.set_title(title, fontsize=title_size, loc="left")


def _scale_and_label(axis: Axes, log: str, ylim: Pair | None, xlabel: str, ylabel: str, title: str) -> None:
    _label(axis, xlabel, ylabel, title, _FONT + 1)
    if "x" in log:
        axis.set_xscale("log", base=2)
    if "y" in log:
        axis.set_yscale("log")
    if ylim:
        axis.set_ylim(ylim)


def _legend_above(figure: Figure, columns: int, *handles_and_labels: object) -> None:
    figure.legend(*handles_and_labels, loc="outside upper center", ncols=columns, frameon=False, **_SMALL)


def _write(axis: Axes, text: str, at: Pair, shift: Pair, **look: object) -> None:
    """Writes beside the point `at`, shifted by so many points."""
    axis.annotate(text, at, xytext=shift, textcoords="offset points", **{"ha": "center", **_SMALL, **look})


def _arrow(axis: Axes, start: Sequence[float], end: Sequence[float], color: str, width: float, dashes="-") -> None:
    look = {"arrowstyle": "->", "color": color, "linestyle": dashes, "lw": width}
    axis.annotate("", end, start, arrowprops=look)


_MARKS = (  # of the ledger: kind of event, marker, colour, label
    ("forward", "|", BLACK, "forward"),
    ("backward", "^", BLUE, "backward: adds"),
    ("change", "X", GREEN, "changed in place"),
    ("step", "D", RED, "step: reads"),
    ("zero", "o", ORANGE, "zeroed"),
)


def ledger(
    trace: Trace,
    lanes: Mapping[str, str] | None = None,
    title: str = "",
    ylabel: str = "norm of .grad",
    notes: Mapping[int, str] | None = None,
) -> Figure:
    """The gradient ledger: what happened to `.grad`, event by event, with one lane per optimizer.

    The line is the norm of all gradients in the lane. It rises with a backward pass and falls to 0 when the gradients
    are zeroed; a step leaves it alone.

    Args:
        trace: From `record()`.
        lanes: Which lanes to draw, in this order, each with the name to show; by default all, under their own names.
        title: Above the first lane.
        ylabel: What the line shows.
        notes: Words to write at events, by the position of the event in the trace.
    """
    lanes = lanes if lanes is not None else {lane: lane for lane in trace.lanes}
    if not lanes:
        raise ValueError("the trace has no events to draw: did a loop run inside `with record() as trace:`?")
    places = {id(event): place for place, event in enumerate(trace.events)}
    events = {lane: {places[id(event)]: event for event in trace.on(lane)} for lane in lanes}
    rows = {lane: _rows_of_notes(notes or {}, events[lane], len(trace.events)) for lane in lanes}
    more = 0.28 * max((row for placed in rows.values() for row in placed.values()), default=0)
    figure, axes = _figure(height=1.1 + (1.9 + more) * len(lanes), rows=len(lanes))
    entries = {}
    for axis, (lane, name) in zip(axes, lanes.items(), strict=True):
        _lane(axis, events[lane], len(trace.events), notes or {}, rows[lane])
        axis.set_ylabel(f"{name}\n{ylabel}", fontsize=_FONT)
        entries |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    axes[0].set_title(title, fontsize=_FONT + 1, loc="left")
    axes[-1].set_xlabel("events of the training loop, in order", fontsize=_FONT)
    _legend_above(figure, 5, entries.values(), entries.keys())
    return figure


def _rows_of_notes(notes: Mapping[int, str], events: Mapping[int, Event], end: int) -> dict[int, int]:
    """For each note of a lane, the lowest row of labels in which it covers no other one."""
    rows: dict[int, int] = {}
    ends: list[float] = []  # where the last label of each row ends
    for place in sorted(notes.keys() & events.keys(), key=lambda place: _span(place, notes[place], end)):
        left, right = _span(place, notes[place], end)
        rows[place] = next((row for row, taken in enumerate(ends) if taken < left), len(ends))
        ends[rows[place] : rows[place] + 1] = [right]
    return rows


def _span(place: int, note: str, end: int) -> Pair:
    """From where to where a label reaches: to the right of its place, or to the left where the lane ends."""
    width = (len(note) + 2) * _CHARACTER * (end + 1)
    return (place, place + width) if place + width < end or place < width else (place - width, place)


def _lane(axis: Axes, events: Mapping[int, Event], end: int, notes: Mapping[int, str], rows: Mapping[int, int]) -> None:
    heights = {place: event.held if event.norm is None else event.norm for place, event in events.items()}
    top = max(filter(isfinite, heights.values()), default=0.0) or 1.0
    axis.step(list(heights), list(heights.values()), where="post", color=BLACK, linewidth=1.4, zorder=1)
    for kind, marker, color, label in _MARKS:
        x = [place for place, event in events.items() if event.kind == kind]
        y = [0.0 if kind == "forward" else heights[place] for place in x]
        if not x:
            continue
        if kind == "step":
            axis.vlines(x, 0, 1.08 * top, color=color, linewidth=0.9, linestyle=":")
        axis.scatter(x, y, marker=marker, s=46, color=color, label=label, zorder=2, linewidths=1.2,
                     edgecolors=None if marker == "|" else BLACK)  # fmt: skip
    for place, row in sorted(rows.items()):  # above everything else in the lane
        bottom = (1.15 + 0.26 * row) * top
        axis.plot([place, place], [heights[place], bottom - 0.02 * top], color=RED, linewidth=1.6, zorder=1)
        axis.text(place, bottom, notes[place], va="bottom", weight="bold", **_SMALL,
                  ha="left" if _span(place, notes[place], end)[0] == place else "right",
                  bbox={"facecolor": "white", "edgecolor": RED, "pad": 2})  # fmt: skip
    highest = 1.3 + 0.26 * max(rows.values()) if rows else 1.12
    axis.set(xlim=(-1, end), ylim=(-0.08 * top, highest * top), xticks=[])
    if all(event.norm is None for event in events.values()):  # counts
        axis.yaxis.get_major_locator().set_params(integer=True)


def curves(
    lines: Mapping[str, Sequence[float]],
    x: Sequence[float],
    xlabel: str,
    ylabel: str,
    log: str = "",
    ylim: Pair | None = None,
    title: str = "",
    legend_outside: bool = False,
    plain: Collection[str] = (),
) -> Figure:
    """One labelled line per entry of `lines` over a common `x`.

    Args:
        lines: Label and values of each line.
        x: Where the values are.
        xlabel: Below the x axis.
        ylabel: Beside the y axis.
        log: The axes that are logarithmic: `"x"`, `"y"` or `"xy"`.
        ylim: Limits of the y axis.
        title: Above the figure.
        legend_outside: Whether the legend is above the axes instead of inside.
        plain: Labels of lines without markers, for what is not measured over `x`, such as a value to compare with.
    """
    figure, (axis,) = _figure()
    for (label, y), (color, dashes, marker) in zip(lines.items(), cycle(_LOOKS)):
        axis.plot(x, y, color=color, linestyle=dashes, marker="" if label in plain else marker,
                  markevery=max(1, len(y) // 12), markersize=5, label=label)  # fmt: skip
    if all(isinstance(value, int) for value in x):
        axis.xaxis.get_major_locator().set_params(integer=True)
    _scale_and_label(axis, log, ylim, xlabel, ylabel, title)
    if legend_outside:
        _legend_above(figure, 3)
    elif len(lines) > 1:
        axis.legend(frameon=False, **_SMALL)
    return figure


def steps_downhill(w: Sequence[float], loss: Sequence[float], start: Pair, ends: Mapping[str, Pair]) -> Figure:
    """A loss curve over one weight, with an arrow from `start` to where each step ends, by label in `ends`."""
    figure, (axis,) = _figure()
    axis.plot(w, loss, color=BLACK, linewidth=1.4)
    axis.plot(*start, "o", color=BLACK, markersize=8)
    _write(axis, "start", start, (8, -12), ha="left", fontsize=_FONT)
    for (label, end), (color, dashes, marker) in zip(ends.items(), _LOOKS, strict=False):
        _arrow(axis, start, end, color, 1.6, dashes)
        axis.plot(*end, marker, color=color, markersize=8, label=label)
    _label(axis, "weight w", "loss L(w)")
    axis.legend(frameon=False, **_SMALL)
    return figure


def backward_passes(
    places: Mapping[str, Pair],
    calls: Mapping[str, tuple[Sequence[tuple[str, str, float]], Mapping[str, str]]],
    leaves: Collection[str],
) -> Figure:
    """Backward passes through a small computation graph: what flows along each edge, and where it adds up.

    There is one panel per call. Its arrows are what this call sends back; edges of the other calls are thin lines.

    Args:
        places: Where each value stands, from left to right as the forward pass computes them.
        calls: By the title of its panel, the flows of a call, each as (from, to, amount), and words beside a value.
        leaves: The values whose `.grad` outlives a call. Their words have a solid frame, the others' a dashed one.

    Example:
        backward_passes({"a": (0, 0), "loss": (1, 0)}, {"loss.backward()": ([("loss", "a", 6.0)], {"a": "6"})}, ["a"])
    """
    figure, axes = _figure(height=2.1 * len(calls), rows=len(calls))
    edges = {(start, end) for flows, _ in calls.values() for start, end, _ in flows}
    for axis, (title, (flows, words)) in zip(axes, calls.items(), strict=True):
        for start, end in sorted(edges):
            axis.plot(
                *zip(places[start], places[end], strict=True), color=BLACK, linewidth=0.6, linestyle=":", zorder=0
            )
        amounts: dict[Pair, list[str]] = {}
        for start, end, amount in flows:
            amounts.setdefault((start, end), []).append(f"{amount:g}")
        for (start, end), parts in amounts.items():
            look = {"arrowstyle": "-|>", "color": BLUE, "lw": 1.8, "shrinkA": 20, "shrinkB": 20}
            axis.annotate("", places[end], places[start], arrowprops=look)
            middle = [(one + other) / 2 for one, other in zip(places[start], places[end], strict=True)]
            axis.text(*middle, " + ".join(parts), color=BLUE, ha="center", va="center", fontsize=_FONT,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})  # fmt: skip
        for name, place in places.items():
            shape = {
                "boxstyle": "round,pad=0.5",
                "facecolor": ORANGE if name in leaves else "white",
                "edgecolor": BLACK,
            }
            axis.text(*place, name, ha="center", va="center", fontsize=_FONT, bbox=shape)
        for name, text in words.items():
            frame = {"facecolor": "white", "edgecolor": BLACK, "pad": 3, "linestyle": "-" if name in leaves else "--"}
            shift, va = (-26, "top") if name in leaves else (22, "bottom")
            _write(axis, text, places[name], (0, shift), va=va, bbox=frame)
        xs, ys = zip(*places.values(), strict=True)
        axis.set(xlim=(min(xs) - 0.6, max(xs) + 0.4), ylim=(min(ys) - 0.7, max(ys) + 0.6))
        axis.set_title(title, fontsize=_FONT, loc="left")
        axis.axis("off")
    return figure


def arrows(gradients: Sequence[Pair], total: Pair, mean: Pair) -> Figure:
    """Gradients of two weights as arrows laid head to tail, with their sum and their mean from the origin."""
    figure, (axis,) = _figure(width=6.5, height=4.2)
    corners = [(0.0, 0.0)]
    for number, (dx, dy) in enumerate(gradients, start=1):
        x, y = corners[-1]
        corners.append((x + dx, y + dy))
        _arrow(axis, (x, y), corners[-1], BLUE, 1.6)
        away = 11 / (hypot(dx, dy) or 1.0)  # points, to the right of the arrow
        _write(axis, f"$g_{number}$", (x + dx / 2, y + dy / 2), (dy * away, -dx * away), va="center", fontsize=_FONT,
               color=BLUE)  # fmt: skip
    for end, color, dashes, label in ((total, RED, "--", "sum"), (mean, GREEN, "-", "mean")):
        _arrow(axis, (0, 0), end, color, 2.4, dashes)
        _write(axis, label, end, (-6, 6), ha="right", fontsize=_FONT, color=color)
    axis.update_datalim([*corners, total, mean])
    axis.margins(0.15)
    axis.axhline(0, color=BLACK, linewidth=0.5)
    axis.axvline(0, color=BLACK, linewidth=0.5)
    _label(axis, "gradient of the first weight", "gradient of the second weight")
    return figure


def shares(tables: Mapping[str, Sequence[Sequence[float]]], right: float, sums: bool = False) -> Figure:
    """What each update is made of: for each loop a table with a row per update and a column per micro-batch.

    Args:
        tables: By the name of the loop, the weight of each micro-batch in each update. It is written into its cell.
        right: The weight that a micro-batch should have. A cell with this weight or more has the full shade.
        sums: Whether to write beside each row what it adds up to.
    """
    tallest = max(len(table) for table in tables.values())
    figure, axes = _figure(height=1.0 + len(tables) * (0.55 + 0.3 * tallest), rows=len(tables))
    for axis, (name, table) in zip(axes, tables.items(), strict=True):
        rows, columns = len(table), len(table[0])
        axis.imshow(table, cmap="Blues", vmin=0, vmax=2.2 * right, aspect="auto")
        for row, weights in enumerate(table):
            for column, weight in enumerate(weights):
                if weight:
                    color = "white" if weight > 1.4 * right else BLACK
                    axis.text(column, row, _rounded(weight), ha="center", va="center", fontsize=_FONT - 2, color=color)
        axis.hlines([row + 0.5 for row in range(rows - 1)], -0.5, columns - 0.5, color=BLACK, linewidth=0.4)
        axis.vlines([column + 0.5 for column in range(columns - 1)], -0.5, rows - 0.5, color=BLACK, linewidth=0.4)
        axis.set_xticks(range(columns), range(1, columns + 1))
        axis.set_yticks(range(rows), range(1, rows + 1))
        _label(axis, "micro-batch" if axis is axes[-1] else "", "update", name)
        if sums:
            beside = axis.secondary_yaxis("right")
            beside.set_yticks(range(rows), [_rounded(sum(weights)) for weights in table], **_SMALL)
            beside.set_ylabel("sum", fontsize=_FONT)
            beside.tick_params(length=0)
            beside.spines["right"].set_visible(False)
    return figure


def _rounded(weight: float) -> str:
    mantissa, exponent = frexp(weight)
    return f"$2^{{{exponent - 1}}}$" if mantissa == 0.5 and weight < 0.005 else f"{weight:.3g}"


def pictures(images: Sequence[Sequence[float]], titles: Sequence[object]) -> Figure:
    """A row of square grey-scale images, each given as a flat list of pixels from 0 (white) to 1 (black)."""
    figure, axes = _figure(height=1.3, columns=len(images))
    for axis, image, title in zip(axes, images, titles, strict=True):
        side = round(len(image) ** 0.5)
        axis.imshow([image[row * side : (row + 1) * side] for row in range(side)], cmap="Greys", vmin=0, vmax=1)
        axis.set_title(str(title), fontsize=_FONT)
        axis.axis("off")
    return figure


def windows(samples: Sequence[Sequence[int]]) -> Figure:
    """The words of accumulation: micro-batches in windows, an update after each, and each window's effective batch.

    Args:
        samples: For each window, how many samples each of its micro-batches holds.
    """
    figure, (axis,) = _figure(height=2.2)
    left = 0.0
    for number, window in enumerate(samples, start=1):
        right = left + len(window)
        places = [left + place + 0.5 for place in range(len(window))]
        axis.bar(places, [1] * len(window), width=0.9, color=SKY, edgecolor=BLACK)
        for place, many in zip(places, window, strict=True):
            axis.text(place, 0.5, f"micro-\nbatch\nof {many}", ha="center", va="center", fontsize=_FONT - 1)
        axis.plot([left + 0.05, left + 0.05, right - 0.05, right - 0.05], [1.15, 1.3, 1.3, 1.15], color=BLACK)
        axis.text((left + right) / 2, 1.4, f"window {number}", ha="center", fontsize=_FONT)
        _arrow(axis, (right, 0.5), (right + 0.5, 0.5), RED, 1.6)
        axis.plot(right + 0.6, 0.5, "D", color=RED, markeredgecolor=BLACK, markersize=9)
        axis.text(right + 0.6, 0.95, f"update {number}", ha="center", va="center", color=RED, fontsize=_FONT)
        batch = f"effective batch {number}: {sum(window)} samples"
        axis.text((left + right) / 2, -0.15, batch, ha="center", va="top", fontsize=_FONT)
        left = right + 1.3
    axis.set(xlim=(-0.2, left - 0.1), ylim=(-0.6, 1.8))
    axis.axis("off")
    return figure


def bars(values: Mapping[str, float], xlabel: str, written: str = "{:,.0f}") -> Figure:
    """One labelled horizontal bar per entry, with its value, formatted by `written`, at its end."""
    figure, (axis,) = _figure(height=0.9 + 0.45 * len(values))
    drawn = axis.barh(range(len(values)), values.values(), color=SKY, edgecolor=BLACK, height=0.6)
    axis.bar_label(drawn, [written.format(value) for value in values.values()], padding=4, **_SMALL)
    axis.set_yticks(range(len(values)), list(values), fontsize=_FONT)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set_xticks([])
    _label(axis, xlabel)
    return figure


def errors(values: Mapping[str, float], limit: float, xlabel: str) -> Figure:
    """One point per entry on a logarithmic axis: a circle below `limit`, a square above it. 0 is drawn at 1e-17."""
    figure, (axis,) = _figure(height=0.9 + 0.25 * len(values))
    rows = range(len(values))
    for row, value in zip(rows, values.values(), strict=True):
        look = {"marker": "o", "color": BLUE, "mfc": "white"} if value < limit else {"marker": "s", "color": RED}
        axis.plot(max(value, 1e-17), row, linestyle="", markersize=7, markeredgewidth=1.6, **look)
    axis.hlines(rows, 1e-17, 10, color=BLACK, linewidth=0.3, linestyle=":", zorder=0)
    axis.axvline(limit, color=BLACK, linewidth=1, linestyle="--")
    for text, side, shift in (("exact", "right", -6), ("not exact", "left", 6)):
        _write(axis, text, (limit, 1), (shift, 2), xycoords=("data", "axes fraction"), ha=side)
    axis.set(xscale="log", xlim=(3e-18, 10))
    axis.set_yticks(rows, list(values), **_SMALL)
    axis.invert_yaxis()
    _label(axis, xlabel)
    return figure


def layers(panels: Mapping[str, Mapping[str, Sequence[float]]], xlabel: str, ylabel: str) -> Figure:
    """What is held, event by event: one panel per loop, with one layer per entry and the peak of their sum."""
    figure, axes = _figure(height=0.9 + 1.6 * len(panels), rows=len(panels))
    sums = {name: [sum(column) for column in zip(*parts.values(), strict=True)] for name, parts in panels.items()}
    top = max(map(max, sums.values()))
    for axis, (name, parts) in zip(axes, panels.items(), strict=True):
        x, peak = range(len(sums[name])), max(sums[name])
        drawn = axis.stackplot(x, *parts.values(), colors=(ORANGE, SKY, GREEN), labels=list(parts), edgecolor=BLACK,
                               linewidth=0.6)  # fmt: skip
        for area, hatch in zip(drawn, ("//", "", ".."), strict=False):
            area.set_hatch(hatch)
        axis.axhline(peak, color=BLACK, linewidth=1, linestyle="--")
        axis.set(xlim=(0, len(x) - 1), ylim=(0, 1.05 * top), xticks=[])
        _label(axis, xlabel if axis is axes[-1] else "", ylabel, f"{name}: peak {peak:,.0f}")
    _legend_above(figure, 3, *axes[0].get_legend_handles_labels())
    return figure


def efficiency(
    sizes: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    estimate: float,
    interval: Pair | None = None,
    title: str = "",
    truth: float | None = None,
) -> Figure:
    """Shares from 0 to 1 of the best possible, over the effective batch, with a measured noise scale.

    Args:
        sizes: Effective batches, in samples.
        lines: Label and shares of each line.
        estimate: The measured noise scale, a vertical line.
        interval: Its 90 percent interval, a band.
        title: Above the figure.
        truth: The true noise scale, a dotted line.
    """
    figure, (axis,) = _figure(height=3.6)
    for (label, share), (color, dashes, marker) in zip(lines.items(), _LOOKS, strict=False):
        axis.plot(sizes, share, color=color, linestyle=dashes, marker=marker, markersize=5, label=label, clip_on=False)
    axis.axvline(estimate, color=BLACK, linewidth=1.4, label="measured noise scale")
    if interval:
        axis.axvspan(*interval, facecolor=ORANGE, alpha=0.35, hatch="//", edgecolor=BLACK,
                     label="its 90 percent interval")  # fmt: skip
    if truth is not None:
        axis.axvline(truth, color=BLACK, linewidth=1.2, linestyle=":", label="true noise scale")
    axis.axhline(0.5, color=BLACK, linewidth=0.7, linestyle=":")
    _scale_and_label(axis, "x", (0, 1), "effective batch, in samples", "share of the best possible", title)
    axis.set_xlim(sizes[0], sizes[-1])
    axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
    _legend_above(figure, 3)
    return figure


def stems(panels: Mapping[str, Mapping[int, float]], xlabel: str, ylabel: str) -> Figure:
    """What happened when: one panel per entry on common axes, with a stem as high as the value at each place."""
    figure, axes = _figure(height=0.8 + 1.4 * len(panels), rows=len(panels))
    places = sorted({place for values in panels.values() for place in values})
    top = max(value for values in panels.values() for value in values.values()) or 1.0
    for axis, (name, values), (color, _, marker) in zip(axes, panels.items(), cycle(_LOOKS)):
        axis.vlines(list(values), 0, list(values.values()), color=color, linewidth=2)
        axis.plot(list(values), list(values.values()), linestyle="", marker=marker, color=color, markersize=7)
        axis.set(xlim=(places[0] - 0.5, places[-1] + 0.5), ylim=(0, 1.15 * top))
        axis.set_xticks(places, places if axis is axes[-1] else [])
        _label(axis, xlabel if axis is axes[-1] else "", ylabel, name)
    return figure


def blocks(widths: Sequence[float], heights: Sequence[float], labels: Sequence, xlabel: str, ylabel: str) -> Figure:
    """One bar per entry, side by side, each as wide and as high as given, with a dashed line at height 1."""
    figure, (axis,) = _figure()
    edges = [sum(widths[:place]) for place in range(len(widths))]
    axis.bar(edges, heights, widths, align="edge", color=SKY, edgecolor=BLACK)
    axis.axhline(1, color=BLACK, linewidth=1.2, linestyle="--")
    for edge, width, height, label in zip(edges, widths, heights, labels, strict=True):
        _write(axis, str(label), (edge + width / 2, max(height, 1)), (0, 5))  # above the line, which crosses no words
    axis.set_xlim(0, 1.003 * sum(widths))  # so that the last edge is drawn too
    axis.margins(y=0.12)
    _label(axis, xlabel, ylabel)
    return figure


def block_rows(
    panels: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    widths: Sequence[float],
    groups: Sequence[str],
    ends: Sequence[float],
    names: tuple[str, str],
    xlabel: str,
    ylabel: str,
) -> Figure:
    """Panels of bars on common axes, one bar as wide as given per entry, and for each bar a second height as a line.

    Args:
        panels: By the name of the panel, the heights of its bars and of its lines.
        widths: How wide the bars are, in all panels.
        groups: What each bar belongs to; each group has a colour and a hatch.
        ends: Where to draw dotted lines from bottom to top.
        names: What the bars are, and what the lines are.
        xlabel: Below the last panel.
        ylabel: Beside each panel.
    """
    figure, axes = _figure(height=0.9 + 1.35 * len(panels), rows=len(panels))
    edges = [sum(widths[:place]) for place in range(len(widths))]
    fills = dict(zip(dict.fromkeys(groups), cycle(((SKY, ""), (ORANGE, "//"), (GREEN, "..")))))
    top = max(max(*bars, *lines) for bars, lines in panels.values())
    for axis, (name, (bars, lines)) in zip(axes, panels.items(), strict=True):
        for group, (color, hatch) in fills.items():
            own = [place for place, other in enumerate(groups) if other == group]
            axis.bar([edges[place] for place in own], [bars[place] for place in own], [widths[place] for place in own],
                     align="edge", color=color, hatch=hatch, edgecolor=BLACK, label=f"{names[0]}, {group}")  # fmt: skip
        for place, (edge, width) in enumerate(zip(edges, widths, strict=True)):
            for color, thickness in (("white", 4.5), (RED, 2.5)):  # with a rim, to stand out from a bar of any colour
                axis.plot([edge, edge + width], [lines[place]] * 2, color=color, linewidth=thickness,
                          solid_capstyle="butt", label=names[1] if color == RED and not place else None)  # fmt: skip
        axis.vlines(ends, 0, 1.05 * top, color=BLACK, linewidth=1, linestyle=":")
        axis.set(xlim=(0, 1.003 * sum(widths)), ylim=(0, 1.05 * top))
        axis.set_xticks([])
        _label(axis, xlabel if axis is axes[-1] else "", ylabel, name)
    _legend_above(figure, 3, *axes[0].get_legend_handles_labels())
    return figure


def intervals(
    lines: Mapping[str, Sequence[tuple[float, float, float]]],
    x: Sequence[float],
    xlabel: str,
    ylabel: str,
    log: str = "",
    ylim: Pair | None = None,
    title: str = "",
) -> Figure:
    """One labelled line per entry of `lines` over a common `x`, with an interval at each point.

    Args:
        lines: Label of each line, and (low, middle, high) at each `x`, NaN for none. The other arguments are those of
            `curves`.
    """
    figure, (axis,) = _figure(height=3.8)
    for (label, points), (color, dashes, marker) in zip(lines.items(), cycle(_LOOKS)):
        middles = [middle for _, middle, _ in points]
        down_and_up = zip(*((middle - low, high - middle) for low, middle, high in points), strict=True)
        axis.errorbar(x, middles, yerr=[*down_and_up], color=color, linestyle=dashes, marker=marker, markersize=6,
                      capsize=4, elinewidth=1.4, label=label)  # fmt: skip
    _scale_and_label(axis, log, ylim, xlabel, ylabel, title)
    if "x" in log:
        axis.set_xticks(x, [f"{value:g}" for value in x])
    if len(lines) > 1:
        axis.legend(frameon=False, **_SMALL)
    return figure
