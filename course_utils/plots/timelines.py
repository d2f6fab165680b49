"""Timelines of the bytes that a loop holds and of the all-reduces of ranks."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from course_utils.plots.look import FONT, GREEN, INK, LEGEND, ORANGE, RED, SKY, SMALL, name_axis, new_figure


def memory_layers(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """The bytes held, event by event: one panel per loop on a common scale, with its peak.

    Args:
        panels: By the name of the loop, the bytes of each layer at each event;
            `vars(held_bytes(...))` has this form.

    Example:
        >>> held = {"gradients": [0, 4e6, 4e6], "activations": [2e6, 2e6, 0]}
        >>> figure = memory_layers({"one by one": held})
    """
    figure, axes = new_figure(height=0.9 + 1.6 * len(panels), rows=len(panels), sharey=True)
    in_bytes = EngFormatter("B")
    for axis, (name, layers) in zip(axes, panels.items(), strict=True):
        peak = max(map(sum, zip(*layers.values(), strict=True)))
        x = range(len(next(iter(layers.values()))))
        axis.stackplot(x, *layers.values(), colors=(ORANGE, SKY, GREEN), labels=list(layers), edgecolor="black",
                       linewidth=0.6, hatch=("//", "", ".."))  # fmt: skip
        axis.axhline(peak, color=INK, linewidth=1, linestyle="--")
        axis.set(xlim=(0, len(x) - 1), xticks=[])
        axis.yaxis.set_major_formatter(in_bytes)
        name_axis(axis, "events of the training loop, in order" if axis is axes[-1] else "", "bytes held", name)
        axis.set_title(f"peak {in_bytes(float(f'{peak:.3g}'))}", fontsize=FONT, loc="right")
    axes[0].set_ylim(bottom=0)  # of all, after the highest
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, **LEGEND)
    return figure


def rank_timeline(panels: Mapping[str, Sequence[Sequence[int]]]) -> Figure:
    """The all-reduces of ranks among the micro-batches of a window, and the update.

    The order is that of the loop; widths are no times.

    Args:
        panels: By title, for each rank how many all-reduces each of its micro-batches made, as
            `count_collectives()` counts them.

    Example:
        >>> every, last = [[1, 1], [1, 1]], [[0, 1], [0, 1]]
        >>> figure = rank_timeline({"nothing inside no_sync()": every, "all but the last": last})
    """
    figure, axes = new_figure(height=0.5 + 1.25 * len(panels), rows=len(panels))
    for axis, (title, sent) in zip(axes, panels.items(), strict=True):
        last = max(map(len, sent))
        for rank, counts in enumerate(sent):
            for index, count in enumerate(counts):
                axis.barh(rank, 0.68, left=index, height=0.62, color=SKY, edgecolor=INK)
                axis.text(index + 0.34, rank, str(index + 1), ha="center", va="center", **SMALL)
                if count:
                    axis.barh(rank, 0.2, left=index + 0.74, height=1, color=ORANGE, hatch="//", linewidth=0)
            axis.plot(last + 0.25, rank, "D", color=RED, markeredgecolor=INK, markersize=9)
        most = max(map(sum, sent))
        axis.set_title(f"{most} all-reduce{'s' * (most != 1)}", fontsize=FONT, loc="right")
        axis.set(xlim=(-0.1, last + 0.6), ylim=(len(sent) - 0.4, -0.6), xticks=[])
        axis.set_yticks(range(len(sent)), [f"rank {rank}" for rank in range(len(sent))])
        axis.tick_params(length=0)
        axis.spines[["left", "bottom"]].set_visible(False)
        name_axis(axis, "micro-batches of a window, all-reduces (bars) and the update, in order" * (axis is axes[-1]),
                  title=title)  # fmt: skip
    return figure
