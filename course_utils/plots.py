"""The course's figures. They draw what they are given and compute nothing; `show()` puts one into a notebook.

Colours are those of Okabe and Ito, told apart by colour-blind readers; every line has its own dashes and markers too,
so that a black-and-white print says the same.
"""

from collections.abc import Collection, Mapping, Sequence
from io import BytesIO
from itertools import cycle
from math import frexp, hypot, isfinite

from matplotlib.figure import Figure

from course_utils.observe.trace import Trace

BLACK, ORANGE, SKY, GREEN, BLUE, RED, PINK = "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
_LOOKS = ((BLUE, "-", "o"), (RED, "--", "s"), (GREEN, "-.", "^"), (ORANGE, ":", "D"), (PINK, (0, (5, 1)), "v"))
_FONT = 11


def show(figure: Figure, alt: str) -> None:
    """Displays a figure in a notebook, with a sentence that says what it shows to those who cannot see it."""
    from IPython.display import display

    display({"image/png": png(figure), "text/plain": f"Figure: {alt}"}, raw=True, metadata=size(figure, alt))


def png(figure: Figure) -> bytes:
    """The figure as a PNG image, at 200 dots per inch."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=200, metadata={"Software": None})
    return buffer.getvalue()


def size(figure: Figure, alt: str) -> dict:
    """What a picture's output says beside the picture: how wide it is, and in words what it shows."""
    width, _ = figure.get_size_inches()
    return {"image/png": {"width": int(width * 100), "alt": alt}}


def _figure(width: float = 7.5, height: float = 3.4, rows: int = 1, columns: int = 1):
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=_FONT - 1)
    return figure, axes


def _dress(axis, xlabel: str, ylabel: str, title: str, log: str, ylim: tuple[float, float] | None) -> None:
    """What the figures with a common `x` share: which axes are logarithmic, their limits and their labels."""
    if "x" in log:
        axis.set_xscale("log", base=2)
    if "y" in log:
        axis.set_yscale("log")
    if ylim:
        axis.set_ylim(ylim)
    axis.set_xlabel(xlabel, fontsize=_FONT)
    axis.set_ylabel(ylabel, fontsize=_FONT)
    axis.set_title(title, fontsize=_FONT + 1, loc="left")


def ledger(
    trace: Trace,
    lanes: Mapping[str, str] | None = None,
    title: str = "",
    ylabel: str = "norm of .grad",
    notes: Mapping[int, str] | None = None,
) -> Figure:
    """The gradient ledger: what happened to `.grad`, event by event, one lane per optimizer.

    The line is the norm of all the lane's gradients. It rises with a backward, falls to 0 with a zeroing, and a step
    leaves it alone.

    **Arguments:** `trace`: from `record()`; `lanes`: which ones, in which order and under which names; all of them
    under their own by default; `notes`: words to write at events, by their place in the trace.
    """
    lanes = lanes if lanes is not None else {lane: lane for lane in trace.lanes}
    if not lanes:
        raise ValueError("the trace has no events to draw: did a loop run inside `with record() as trace:`?")
    figure, axes = _figure(height=1.1 + 1.9 * len(lanes), rows=len(lanes))
    places = {id(event): place for place, event in enumerate(trace.events)}
    for axis, lane in zip(axes[:, 0], lanes, strict=True):
        events = trace.on(lane)
        heights = [event.held if event.norm is None else event.norm for event in events]
        top = max(filter(isfinite, heights), default=0.0) or 1.0
        x = [places[id(event)] for event in events]
        axis.step(x, heights, where="post", color=BLACK, linewidth=1.4, zorder=1)
        for kind, marker, color, label in (
            ("forward", "|", BLACK, "forward"),
            ("backward", "^", BLUE, "backward: adds"),
            ("change", "X", GREEN, "changed in place"),
            ("step", "D", RED, "step: reads"),
            ("zero", "o", ORANGE, "zeroed"),
        ):
            marks = [(place, y) for place, y, event in zip(x, heights, events, strict=True) if event.kind == kind]
            if not marks:
                continue
            if kind == "forward":
                marks = [(place, 0.0) for place, _ in marks]
            if kind == "step":
                axis.vlines([place for place, _ in marks], 0, 1.08 * top, color=RED, linewidth=0.9, linestyle=":")
            axis.scatter(*zip(*marks, strict=True), marker=marker, s=46, color=color, label=label, zorder=2,
                         linewidths=1.2, edgecolors=None if marker == "|" else BLACK)  # fmt: skip
        marked = sorted((notes or {}).keys() & set(x))
        axis.set_ylim(-0.08 * top, (1.3 if marked else 1.12) * top)
        axis.set_xlim(-1, len(trace.events))
        if all(event.norm is None for event in events):  # counts
            axis.yaxis.get_major_locator().set_params(integer=True)
        axis.set_ylabel(f"{lanes[lane]}\n{ylabel}", fontsize=_FONT)
        for place in marked:  # above the lane, where nothing else is drawn
            side = "left" if place < 0.7 * len(trace.events) else "right"
            axis.plot([place, place], [heights[x.index(place)], 1.13 * top], color=RED, linewidth=1.6, zorder=1)
            axis.text(place, 1.15 * top, notes[place], ha=side, va="bottom", fontsize=_FONT - 1, weight="bold",
                      bbox={"facecolor": "white", "edgecolor": RED, "pad": 2})  # fmt: skip
        axis.set_xticks([])
    axes[-1, 0].set_xlabel("events of the training loop, in order", fontsize=_FONT)
    entries = {}
    for axis in axes[:, 0]:
        entries |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(
        entries.values(), entries.keys(), loc="outside upper center", ncols=5, frameon=False, fontsize=_FONT - 1
    )
    if title:
        axes[0, 0].set_title(title, fontsize=_FONT + 1, loc="left")
    return figure


def curves(
    lines: Mapping[str, Sequence[float]],
    x: Sequence[float],
    xlabel: str,
    ylabel: str,
    log: str = "",
    ylim: tuple[float, float] | None = None,
    title: str = "",
    legend_outside: bool = False,
    plain: Collection[str] = (),
) -> Figure:
    """One labelled line per entry of `lines` over the common `x`; `log` may name the axes "x", "y" or "xy".

    The lines named in `plain` have no markers: what is no measurement over `x`, such as a value to compare with.
    """
    figure, axes = _figure()
    axis = axes[0, 0]
    for (label, y), (color, dashes, marker) in zip(lines.items(), cycle(_LOOKS)):
        every = max(1, len(y) // 12)
        marker = "" if label in plain else marker
        axis.plot(x, y, color=color, linestyle=dashes, marker=marker, markevery=every, markersize=5, label=label)
    if all(isinstance(value, int) for value in x):
        axis.xaxis.get_major_locator().set_params(integer=True)
    _dress(axis, xlabel, ylabel, title, log, ylim)
    if legend_outside:
        figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=_FONT - 1)
    elif len(lines) > 1:
        axis.legend(frameon=False, fontsize=_FONT - 1)
    return figure


def steps_downhill(
    w: Sequence[float], loss: Sequence[float], start: tuple[float, float], ends: Mapping[str, tuple[float, float]]
) -> Figure:
    """A loss curve over one weight, and where steps of several lengths land: arrows from `start` to each of `ends`."""
    figure, axes = _figure()
    axis = axes[0, 0]
    axis.plot(w, loss, color=BLACK, linewidth=1.4)
    axis.plot(*start, "o", color=BLACK, markersize=8)
    axis.annotate("start", start, xytext=(8, -12), textcoords="offset points", fontsize=_FONT)
    for (label, end), (color, dashes, marker) in zip(ends.items(), _LOOKS, strict=False):
        axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": color, "linestyle": dashes, "lw": 1.6})
        axis.plot(*end, marker, color=color, markersize=8, label=label)
    axis.set_xlabel("weight w", fontsize=_FONT)
    axis.set_ylabel("loss L(w)", fontsize=_FONT)
    axis.legend(frameon=False, fontsize=_FONT - 1)
    return figure


def arrows(cups: Sequence[tuple[float, float]], total: tuple[float, float], mean: tuple[float, float]) -> Figure:
    """Gradients of two weights as arrows laid head to tail, with their sum and their mean from the origin."""
    figure, axes = _figure(width=6.5, height=4.2)
    axis = axes[0, 0]
    x, y = 0.0, 0.0
    for number, (dx, dy) in enumerate(cups, start=1):
        axis.annotate("", (x + dx, y + dy), (x, y), arrowprops={"arrowstyle": "->", "color": BLUE, "lw": 1.6})
        away = 11 / (hypot(dx, dy) or 1.0)  # points, to the right of the arrow
        axis.annotate(f"$g_{number}$", (x + dx / 2, y + dy / 2), xytext=(dy * away, -dx * away),
                      textcoords="offset points", ha="center", va="center", fontsize=_FONT, color=BLUE)  # fmt: skip
        x, y = x + dx, y + dy
    for (dx, dy), color, dashes, label in ((total, RED, "--", "sum"), (mean, GREEN, "-", "mean")):
        axis.annotate("", (dx, dy), (0, 0), arrowprops={"arrowstyle": "->", "color": color, "lw": 2.4, "ls": dashes})
        axis.annotate(label, (dx, dy), xytext=(-6, 6), textcoords="offset points", ha="right", fontsize=_FONT,
                      color=color)  # fmt: skip
    corners = [(0.0, 0.0), total, mean]
    for dx, dy in cups:
        corners.append((corners[-1][0] + dx, corners[-1][1] + dy) if len(corners) > 3 else (dx, dy))
    axis.update_datalim(corners)
    axis.autoscale_view()
    axis.margins(0.15)
    axis.axhline(0, color=BLACK, linewidth=0.5)
    axis.axvline(0, color=BLACK, linewidth=0.5)
    axis.set_xlabel("gradient of the first weight", fontsize=_FONT)
    axis.set_ylabel("gradient of the second weight", fontsize=_FONT)
    return figure


def _share(weight: float) -> str:
    mantissa, exponent = frexp(weight)
    return f"$2^{{{exponent - 1}}}$" if mantissa == 0.5 and weight < 0.005 else f"{weight:.3g}"


def shares(tables: Mapping[str, Sequence[Sequence[float]]], right: float) -> Figure:
    """What each update is made of: for each loop a table with a row per update and a column per micro-batch.

    A cell is the weight of a micro-batch in that update, written in it; its shade goes from white (not used) to full
    (the weight `right`, or more).
    """
    tallest = max(len(table) for table in tables.values())
    figure, axes = _figure(width=7.5, height=1.0 + len(tables) * (0.55 + 0.3 * tallest), rows=len(tables))
    for axis, (label, table) in zip(axes[:, 0], tables.items(), strict=True):
        axis.imshow(table, cmap="Blues", vmin=0, vmax=2.2 * right, aspect="auto")
        for row, weights in enumerate(table):
            for column, weight in enumerate(weights):
                if weight:
                    dark = weight > 1.4 * right
                    axis.text(column, row, _share(weight), ha="center", va="center", fontsize=_FONT - 2,
                              color="white" if dark else BLACK)  # fmt: skip
        axis.hlines([row + 0.5 for row in range(len(table) - 1)], -0.5, len(table[0]) - 0.5, color=BLACK, linewidth=0.4)
        axis.vlines([column + 0.5 for column in range(len(table[0]) - 1)], -0.5, len(table) - 0.5, color=BLACK,
                    linewidth=0.4)  # fmt: skip
        axis.set_title(label, fontsize=_FONT, loc="left")
        axis.set_ylabel("update", fontsize=_FONT)
        axis.set_xticks(range(len(table[0])), range(1, len(table[0]) + 1))
        axis.set_yticks(range(len(table)), range(1, len(table) + 1))
    axes[-1, 0].set_xlabel("micro-batch", fontsize=_FONT)
    return figure


def pictures(images: Sequence[Sequence[float]], titles: Sequence[object]) -> Figure:
    """A row of square grey-scale images, each given as one list of pixels from 0 (white) to 1 (black)."""
    figure, axes = _figure(height=1.3, columns=len(images))
    for axis, image, title in zip(axes[0], images, titles, strict=True):
        side = round(len(image) ** 0.5)
        axis.imshow([image[row * side : (row + 1) * side] for row in range(side)], cmap="Greys", vmin=0, vmax=1)
        axis.set_title(str(title), fontsize=_FONT)
        axis.axis("off")
    return figure


def bars(values: Mapping[str, float], xlabel: str, written: str = "{:,.0f}") -> Figure:
    """One labelled horizontal bar per entry, its value written at its end."""
    figure, axes = _figure(height=0.9 + 0.45 * len(values))
    axis = axes[0, 0]
    labels = list(values)
    drawn = axis.barh(range(len(labels)), values.values(), color=SKY, edgecolor=BLACK, height=0.6)
    axis.bar_label(drawn, [written.format(value) for value in values.values()], padding=4, fontsize=_FONT - 1)
    axis.set_yticks(range(len(labels)), labels, fontsize=_FONT)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set_xticks([])
    axis.set_xlabel(xlabel, fontsize=_FONT)
    return figure


def errors(values: Mapping[str, float], limit: float, xlabel: str) -> Figure:
    """One point per entry on a logarithmic axis: a circle below `limit`, a square above it. 0 is drawn at 1e-17."""
    figure, axes = _figure(height=0.9 + 0.32 * len(values))
    axis = axes[0, 0]
    rows = range(len(values))
    for row, value in zip(rows, values.values(), strict=True):
        look = {"marker": "o", "color": BLUE, "mfc": "white"} if value < limit else {"marker": "s", "color": RED}
        axis.plot(max(value, 1e-17), row, linestyle="", markersize=7, markeredgewidth=1.6, **look)
    axis.hlines(rows, 1e-17, 10, color=BLACK, linewidth=0.3, linestyle=":", zorder=0)
    axis.axvline(limit, color=BLACK, linewidth=1, linestyle="--")
    for text, side, shift in (("exact", "right", -6), ("not exact", "left", 6)):
        axis.annotate(text, (limit, 1), xycoords=("data", "axes fraction"), xytext=(shift, 2),
                      textcoords="offset points", ha=side, fontsize=_FONT - 1)  # fmt: skip
    axis.set_xscale("log")
    axis.set_xlim(3e-18, 10)
    axis.set_yticks(rows, list(values), fontsize=_FONT - 1)
    axis.invert_yaxis()
    axis.set_xlabel(xlabel, fontsize=_FONT)
    return figure


def stacks(parts: Mapping[str, Sequence[float]], labels: Sequence, xlabel: str, ylabel: str) -> Figure:
    """One bar per label, with one layer per entry of `parts`, the first at the bottom and the sum written on top."""
    figure, axes = _figure(height=3.8)
    axis = axes[0, 0]
    places, bottom = range(len(labels)), [0.0] * len(labels)
    looks = cycle(((SKY, ""), (ORANGE, "//"), (GREEN, ".."), (RED, "xx"), (PINK, "--")))
    for (name, heights), (color, hatch) in zip(parts.items(), looks):  # noqa: B905
        axis.bar(places, heights, bottom=bottom, color=color, hatch=hatch, edgecolor=BLACK, width=0.65, label=name)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    for place, total in zip(places, bottom, strict=True):
        axis.annotate(f"{total:,.0f}", (place, total), xytext=(0, 3), textcoords="offset points", ha="center",
                      fontsize=_FONT - 1)  # fmt: skip
    axis.set_xticks(places, labels)
    axis.margins(y=0.1)
    axis.set_xlabel(xlabel, fontsize=_FONT)
    axis.set_ylabel(ylabel, fontsize=_FONT)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=_FONT - 1)
    return figure


def layers(panels: Mapping[str, Mapping[str, Sequence[float]]], xlabel: str, ylabel: str) -> Figure:
    """What is held, event by event: one panel per loop, in it one layer per entry, and the peak of their sum."""
    figure, axes = _figure(height=0.9 + 1.6 * len(panels), rows=len(panels))
    sums = {title: [sum(column) for column in zip(*parts.values(), strict=True)] for title, parts in panels.items()}
    top = max(map(max, sums.values()))
    for axis, (title, parts) in zip(axes[:, 0], panels.items(), strict=True):
        x = range(len(sums[title]))
        drawn = axis.stackplot(x, *parts.values(), colors=(ORANGE, SKY, GREEN), labels=list(parts), edgecolor=BLACK,
                               linewidth=0.6)  # fmt: skip
        for area, hatch in zip(drawn, ("//", "", ".."), strict=False):
            area.set_hatch(hatch)
        axis.axhline(max(sums[title]), color=BLACK, linewidth=1, linestyle="--")
        axis.set_title(f"{title}: peak {max(sums[title]):,.0f}", fontsize=_FONT, loc="left")
        axis.set_ylim(0, 1.05 * top)
        axis.set_xlim(0, len(x) - 1)
        axis.set_xticks([])
        axis.set_ylabel(ylabel, fontsize=_FONT)
    axes[-1, 0].set_xlabel(xlabel, fontsize=_FONT)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False,
                  fontsize=_FONT - 1)  # fmt: skip
    return figure


def efficiency(
    sizes: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    estimate: float,
    interval: tuple[float, float] | None = None,
    title: str = "",
    truth: float | None = None,
) -> Figure:
    """Shares from 0 to 1 over the effective batch; a measured noise scale is a line, its interval a band."""
    figure, axes = _figure(height=3.6)
    axis = axes[0, 0]
    for (label, share), (color, dashes, marker) in zip(lines.items(), _LOOKS, strict=False):
        axis.plot(sizes, share, color=color, linestyle=dashes, marker=marker, markersize=5, label=label)
    axis.axvline(estimate, color=BLACK, linewidth=1.4, label="measured noise scale")
    if interval:
        label = "its 90 percent interval"
        axis.axvspan(*interval, facecolor=ORANGE, alpha=0.35, hatch="//", edgecolor=BLACK, label=label)
    if truth is not None:
        axis.axvline(truth, color=BLACK, linewidth=1.2, linestyle=":", label="true noise scale")
    axis.axhline(0.5, color=BLACK, linewidth=0.7, linestyle=":")
    axis.set_xscale("log", base=2)
    axis.set_xlim(sizes[0], sizes[-1])
    axis.set_xticks(sizes[::2], [f"{size:g}" for size in sizes[::2]])
    axis.set_ylim(0, 1)
    axis.set_xlabel("effective batch, in items", fontsize=_FONT)
    axis.set_ylabel("share of the best possible", fontsize=_FONT)
    axis.set_title(title, fontsize=_FONT + 1, loc="left")
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=_FONT - 1)
    return figure


def stems(panels: Mapping[str, Mapping[int, float]], xlabel: str, ylabel: str) -> Figure:
    """What happened when, one panel per entry on common axes: a stem at each place, as high as its value."""
    figure, axes = _figure(height=0.8 + 1.4 * len(panels), rows=len(panels))
    places = [place for values in panels.values() for place in values]
    top = max(value for values in panels.values() for value in values.values()) or 1.0
    for axis, (title, values), (color, _, marker) in zip(axes[:, 0], panels.items(), cycle(_LOOKS)):
        axis.vlines(list(values), 0, list(values.values()), color=color, linewidth=2)
        axis.plot(list(values), list(values.values()), linestyle="", marker=marker, color=color, markersize=7)
        axis.set_title(title, fontsize=_FONT, loc="left")
        axis.set_xlim(min(places) - 0.5, max(places) + 0.5)
        axis.set_ylim(0, 1.15 * top)
        axis.set_ylabel(ylabel, fontsize=_FONT)
        axis.set_xticks(sorted(set(places)), [] if axis is not axes[-1, 0] else sorted(set(places)))
    axes[-1, 0].set_xlabel(xlabel, fontsize=_FONT)
    return figure


def blocks(
    widths: Sequence[float], heights: Sequence[float], labels: Sequence[object], xlabel: str, ylabel: str
) -> Figure:
    """One bar per entry, side by side, each as wide and as high as given, with a dashed line at height 1.

    A label stands above its bar and above the line, so that the line crosses no words.
    """
    figure, axes = _figure()
    axis = axes[0, 0]
    edges = [sum(widths[:place]) for place in range(len(widths))]
    axis.bar(edges, heights, widths, align="edge", color=SKY, edgecolor=BLACK)
    axis.axhline(1, color=BLACK, linewidth=1.2, linestyle="--")
    for edge, width, height, label in zip(edges, widths, heights, labels, strict=True):
        axis.annotate(str(label), (edge + width / 2, max(height, 1)), xytext=(0, 5), textcoords="offset points",
                      ha="center", fontsize=_FONT - 1)  # fmt: skip
    axis.set_xlim(0, 1.003 * sum(widths))  # the last edge is drawn, too
    axis.margins(y=0.12)
    axis.set_xlabel(xlabel, fontsize=_FONT)
    axis.set_ylabel(ylabel, fontsize=_FONT)
    return figure


def intervals(
    lines: Mapping[str, Sequence[tuple[float, float, float]]],
    x: Sequence[float],
    xlabel: str,
    ylabel: str,
    log: str = "",
    ylim: tuple[float, float] | None = None,
    title: str = "",
) -> Figure:
    """One labelled line per entry of `lines` over the common `x`: at each place low, middle and high, or nan for none.

    `log` may name the axes "x", "y" or "xy".
    """
    figure, axes = _figure(height=3.8)
    axis = axes[0, 0]
    for (label, points), (color, dashes, marker) in zip(lines.items(), cycle(_LOOKS)):
        low, middle, high = zip(*points, strict=True)
        down = [m - l for l, m in zip(low, middle, strict=True)]  # noqa: E741
        up = [h - m for m, h in zip(middle, high, strict=True)]
        axis.errorbar(x, middle, yerr=(down, up), color=color, linestyle=dashes, marker=marker, markersize=6,
                      capsize=4, elinewidth=1.4, label=label)  # fmt: skip
    _dress(axis, xlabel, ylabel, title, log, ylim)
    if "x" in log:
        axis.set_xticks(x, [f"{value:g}" for value in x])
    if len(lines) > 1:
        axis.legend(frameon=False, fontsize=_FONT - 1)
    return figure
