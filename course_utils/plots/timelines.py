"""What happens when: on micro-batches, in slots, on ranks."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.plots.look import (
    BLACK,
    FONT,
    GREEN,
    LOOKS,
    ORANGE,
    RED,
    SKY,
    SMALL,
    in_bytes,
    ink,
    legend_above,
    name_axis,
    new_figure,
    write,
)


def layers(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """The bytes that are held, event by event: one panel per loop on a common scale, with the peak of each.

    Args:
        panels: By the name of the loop, the bytes of each layer at each event; `vars(held_bytes(...))` has this form.

    Example:
        >>> figure = layers({"one by one": {"gradients": [0, 4e6, 4e6], "activations": [2e6, 2e6, 0]}})
    """
    figure, axes = new_figure(height=0.9 + 1.6 * len(panels), rows=len(panels))
    sums = {name: [sum(column) for column in zip(*parts.values(), strict=True)] for name, parts in panels.items()}
    top = max(map(max, sums.values()))
    unit, words = in_bytes(top)
    for axis, (name, parts) in zip(axes, panels.items(), strict=True):
        x, peak = range(len(sums[name])), max(sums[name])
        stack = [[value / unit for value in part] for part in parts.values()]
        drawn = axis.stackplot(x, *stack, colors=(ORANGE, SKY, GREEN), labels=list(parts), edgecolor=BLACK,
                               linewidth=0.6)  # fmt: skip
        for area, hatch in zip(drawn, ("//", "", ".."), strict=False):
            area.set_hatch(hatch)
        axis.axhline(peak / unit, color=BLACK, linewidth=1, linestyle="--")
        axis.set(xlim=(0, len(x) - 1), ylim=(0, 1.05 * top / unit), xticks=[])
        name_axis(axis, "events of the training loop, in order" if axis is axes[-1] else "", f"{words} held", name)
        axis.set_title(f"peak {peak / unit:.3g} {words}", fontsize=FONT, loc="right")
    legend_above(figure, 3, *axes[0].get_legend_handles_labels())
    return figure


Passes = Sequence[tuple[int, str, float]]


def pipelines(schedules: Mapping[str, Sequence[Passes]], what: str) -> Figure:
    """For each schedule, which pass each stage runs in which slot; and below, the bytes that each stage holds.

    Args:
        schedules: For each, its stages, and for each stage its passes: the slot, a label that begins with F or B, and
            the bytes that are held in that slot. `timetable()` returns such stages.
        what: What is held.

    Example:
        >>> first, last = [(0, "F0", 100), (3, "B0", 100)], [(1, "F0", 300), (2, "B0", 300)]
        >>> figure = pipelines({"1F1B": [first, last]}, "saved for backward")
    """
    figure, axes = new_figure(height=4.4, rows=2, columns=len(schedules), sharex="col", sharey="row")
    above, below = axes[: len(schedules)], axes[len(schedules) :]
    top = max(held for stages in schedules.values() for passes in stages for *_, held in passes)
    unit, words = in_bytes(top)
    for axis, lower, (name, stages) in zip(above, below, schedules.items(), strict=True):
        end = 1 + max(slot for passes in stages for slot, *_ in passes)
        peaks = [max(held for *_, held in passes) for passes in stages]
        for stage, passes in enumerate(stages):
            _passes(axis, stage, passes)
            color, dashes, _ = LOOKS[stage % len(LOOKS)]
            edges = [slot for slot, *_ in passes] + [passes[-1][0] + 1]
            held = [held / unit for *_, held in passes] + [0]
            lower.step(edges, held, where="post", color=color, linestyle=dashes, lw=2)
            peak = (edges[held.index(max(held))], max(held))
            up = peaks[stage] == max(peaks)  # the others are named below their lines
            write(lower, f"stage {stage}", peak, (3, 3 if up else -3), ha="left", va="bottom" if up else "top",
                  color=ink(color))  # fmt: skip
        axis.set(xlim=(0, end), ylim=(len(stages) - 0.5, -0.5))
        axis.set_yticks(range(len(stages)), [f"stage {stage}" for stage in range(len(stages))])
        axis.tick_params(bottom=False)
        lower.set(xlim=(0, end), ylim=(0, 1.2 * top / unit))
        name_axis(axis, title=name)
        name_axis(lower, "slot: one pass on each stage", f"{words} {what}" if lower is below[0] else "")
    return figure


def _passes(axis: Axes, stage: int, passes: Passes) -> None:
    for slot, words, _ in passes:
        forward = words.startswith("F")
        axis.barh(stage, 1, left=slot, height=0.8, color=SKY if forward else ORANGE, edgecolor=BLACK)
        axis.text(slot + 0.5, stage, words, ha="center", va="center", **SMALL)


def ranks(panels: Mapping[str, Sequence[Sequence[int]]]) -> Figure:
    """After which micro-batches of a window the ranks of a group all-reduce, and the update that follows.

    The order is that of the loop; widths are no times.

    Args:
        panels: By title, for each rank how many all-reduces each of its micro-batches made, as `count_collectives()`
            counts them.

    Example:
        >>> figure = ranks({"nothing inside no_sync()": [[1, 1], [1, 1]], "all but the last": [[0, 1], [0, 1]]})
    """
    figure, axes = new_figure(height=0.5 + 1.25 * len(panels), rows=len(panels))
    for axis, (title, sent) in zip(axes, panels.items(), strict=True):
        last = max(map(len, sent))
        for rank, counts in enumerate(sent):
            for place, count in enumerate(counts):
                axis.barh(rank, 0.68, left=place, height=0.62, color=SKY, edgecolor=BLACK)
                axis.text(place + 0.34, rank, str(place + 1), ha="center", va="center", **SMALL)
                if count:
                    axis.barh(rank, 0.2, left=place + 0.74, height=1, color=ORANGE, hatch="//", linewidth=0)
            axis.plot(last + 0.25, rank, "D", color=RED, markeredgecolor=BLACK, markersize=9)
        most = max(map(sum, sent))
        axis.set_title(f"{most} all-reduce{'s' * (most != 1)}", fontsize=FONT, loc="right", color=ink(ORANGE))
        axis.set(xlim=(-0.1, last + 0.6), ylim=(len(sent) - 0.4, -0.6), xticks=[])
        axis.set_yticks(range(len(sent)), [f"rank {rank}" for rank in range(len(sent))])
        axis.tick_params(length=0)
        axis.spines[["left", "bottom"]].set_visible(False)
        name_axis(axis, "micro-batches of a window, all-reduces (bars) and the update, in order" * (axis is axes[-1]),
                  title=title)  # fmt: skip
    return figure
