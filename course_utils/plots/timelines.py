"""Timelines of the bytes that a loop holds and of the all-reduces of ranks."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from course_utils.plots.look import BLUE, FONT, GREEN, INK, LEGEND, ORANGE, RED, SKY, SMALL, name_axis, new_figure


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


def rank_timeline(panels: Mapping[str, Sequence[tuple[Sequence[float], Sequence[int]]]]) -> Figure:
    """The ranks of a window as lanes: what is in `.grad`, the all-reduces, and the update.

    The order is that of the loop; widths are no times.

    Args:
        panels: By title, for each rank what its `.grad` holds after each of its micro-batches, and
            how many all-reduces each made, as `count_collectives()` counts them.

    Example:
        >>> last = [([1.0, 4.0], [0, 1]), ([3.0, 4.0], [0, 1])]  # gradients of 1 and 3, averaged at the end
        >>> figure = rank_timeline({"all but the last inside no_sync()": last})
    """
    figure, axes = new_figure(6.2, 0.5 + 1.5 * len(panels), rows=len(panels))
    for axis, (title, ranks) in zip(axes, panels.items(), strict=True):
        for rank, (held, sent) in enumerate(ranks):
            end, equal = len(held), held[-1] == ranks[0][0][-1]
            for index, value in enumerate(held):
                axis.barh(rank, 0.7, left=index, height=0.5, color=SKY, edgecolor="black")
                axis.text(index + 0.35, rank, f"{value:g}", ha="center", va="center", color="black", **SMALL)
                if rank and sent[index]:
                    look = {"arrowstyle": "<|-|>", "color": RED, "lw": 2, "shrinkA": 0, "shrinkB": 0}
                    axis.annotate("", (index + 0.35, rank - 0.25), (index + 0.35, rank - 0.75), arrowprops=look)
            axis.plot(end + 0.15, rank, "D" if equal else "X", color=BLUE if equal else RED, markersize=9)
        most = max(sum(sent) for _, sent in ranks)
        axis.set_title(f"{most} all-reduce{'s' * (most != 1)}", fontsize=FONT, loc="right")
        axis.set(xlim=(-0.1, end + 0.5), ylim=(len(ranks) - 0.6, -0.4), xticks=[])
        axis.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in range(len(ranks))])
        axis.tick_params(length=0)
        axis.spines[["left", "bottom"]].set_visible(False)
        name_axis(axis, "in .grad after each micro-batch; arrows: all-reduces; last: the update" * (axis is axes[-1]),
                  title=title)  # fmt: skip
    return figure
