"""Memory, and advice."""

from collections.abc import Iterator

import torch

from course_utils.audit.history import History
from course_utils.audit.rules.finding import ADVICE, ERROR, UNDECIDED, Finding, count_noun


def held_graphs(history: History) -> Iterator[Finding]:
    """Memory grows with N, or from batch to batch.

    Mend: backward on each micro-batch; .item() or .detach() for the log.
    """
    again = [call for call in history.backwards if call.again]
    if again:
        yield Finding(
            "held-graphs",
            ERROR if len(again) > 1 else UNDECIDED,
            f"{count_noun(len(again), 'backward call')} went through a loss that an earlier call had gone through: its "
            "graph is kept, and its gradient counts once for every call",
            "call backward on each loss once, and detach() what is added up for the log",
            again[0].where,
            {"calls": len(again)},
        )
    kept = max(history.backwards, key=lambda call: call.alive, default=None)
    if kept is not None and not again and kept.alive >= 5 and kept.alive > history.backwards.total / 4:
        yield Finding(
            "held-graphs",
            ADVICE,
            f"the graphs of {kept.alive} earlier losses were still alive at backward call {kept.number}: something "
            "keeps the losses themselves, such as a sum for the log",
            "add up loss.item() or loss.detach()",
            kept.where,
            {"graphs_alive": kept.alive, "backward_call": kept.number},
        )
    together = [call for call in history.backwards if call.graphs > 2]
    if together:
        call = together[0]
        yield Finding(
            "held-graphs",
            ADVICE,
            f"one backward call went through {call.graphs} forward passes that have nothing in common: the activations "
            "of all of them were in memory at once",
            "if these are micro-batches, call backward on each before the next forward: the sum is the same",
            call.where,
            {"graphs": call.graphs, "calls": len(together)},
        )


def batchnorm(history: History) -> Iterator[Finding]:
    """The gradient depends on who shares a micro-batch.

    Mend: GroupNorm or LayerNorm, or freeze the layer with eval().
    """
    for lane in history.lanes:
        moved = [w for w in history.of(lane) if w.size > 1 and w.batchnorm >= w.size]
        if moved:
            yield Finding(
                "batchnorm",
                ADVICE,
                f"BatchNorm layers train in windows of {count_noun(moved[0].size, 'micro-batch')}: each is normalised by "
                f"itself, and the running statistics move {moved[0].batchnorm} times per update",
                "use GroupNorm or LayerNorm, freeze the layer with eval(), or accept the small batch's statistics",
                moved[0].where,
                {"update": moved[0].number, "window": moved[0].size, "moves_per_update": moved[0].batchnorm},
                lane=lane,
            )


def low_precision_accumulation(history: History) -> Iterator[Finding]:
    """Long windows lose gradient.

    Mend: float32 weights under autocast, or a sum in float32.
    """
    for lane in history.lanes:
        low = [w for w in history.of(lane) if w.dtype in (torch.bfloat16, torch.float16) and w.size > 1]
        if low:
            yield Finding(
                "low-precision-accumulation",
                ADVICE,
                f"{count_noun(max(w.size for w in low), 'micro-batch')} are added up in {_name(low[0].dtype)}: small "
                "addends are lost",
                "keep the weights in float32 and use autocast, or add the gradients up in a float32 buffer",
                low[0].where,
                {"update": low[0].number, "dtype": _name(low[0].dtype), "window": max(w.size for w in low)},
                lane=lane,
            )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
