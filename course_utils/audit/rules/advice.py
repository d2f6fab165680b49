"""What costs memory or precision, though the loop may be correct."""

from collections.abc import Iterator

import torch

from course_utils.audit.history import History
from course_utils.audit.rules.registry import ADVICE, ERROR, UNDECIDED, Finding, count_noun, rule


@rule(
    "held-graphs",
    symptom="Memory grows with N, or from batch to batch.",
    fix="Call backward on each micro-batch; log .item() or .detach().",
    cause="Backward is called once on a sum of losses, or something keeps the losses, so activations of several "
    "micro-batches are in memory together.",
)
def held_graphs(history: History) -> Iterator[Finding]:
    again = [call for call in history.backwards if call.again]
    if again:
        yield Finding(
            ERROR if len(again) > 1 else UNDECIDED,
            f"{count_noun(len(again), 'backward call')} went through a loss that an earlier call had gone through: its "
            "graph is kept, and its gradient counts once for every call",
            evidence={"calls": len(again)},
            fix="call backward on each loss once, and detach() what is added up for the log",
            where=again[0].where,
        )
    kept = max(history.backwards, key=lambda call: call.alive, default=None)
    if kept is not None and not again and kept.alive >= 5 and kept.alive > history.backwards.total / 4:
        yield Finding(
            ADVICE,
            f"the graphs of {kept.alive} earlier losses were still alive at backward call {kept.number}: something "
            "keeps the losses themselves, such as a sum for the log",
            evidence={"graphs_alive": kept.alive, "backward_call": kept.number},
            fix="add up loss.item() or loss.detach()",
            where=kept.where,
        )
    together = [call for call in history.backwards if call.graphs > 2]
    if together:
        yield Finding(
            ADVICE,
            f"one backward call went through {together[0].graphs} forward passes that have nothing in common: the "
            "activations of all of them were in memory at once",
            evidence={"graphs": together[0].graphs, "calls": len(together)},
            fix="if these are micro-batches, call backward on each before the next forward pass: the sum is the same",
            where=together[0].where,
        )


@rule(
    "batchnorm",
    symptom="The gradient depends on what else is in the micro-batch.",
    fix="Use GroupNorm or LayerNorm, or freeze the layer with eval().",
    cause="In training mode the layer normalizes by its own micro-batch, so a window of N isn't the same as one "
    "batch of N times the size.",
)
def batchnorm(history: History) -> Iterator[Finding]:
    for lane in history.lanes:
        moved = [w for w in history.of(lane) if w.size > 1 and w.batchnorm >= w.size]
        if moved:
            first = moved[0]
            yield Finding(
                ADVICE,
                f"BatchNorm layers train in windows of {count_noun(first.size, 'micro-batch')}: each is normalised by "
                f"itself, and the running statistics move {first.batchnorm} times per update",
                evidence={"update": first.number, "window": first.size, "moves_per_update": first.batchnorm},
                fix="use GroupNorm or LayerNorm, freeze the layer with eval(), or accept the small batch's statistics",
                where=first.where,
                lane=lane,
            )


@rule(
    "low-precision-accumulation",
    symptom="A long window loses small gradients.",
    fix="Use float32 weights under autocast, or a sum in float32.",
    cause="The gradient's sum has the weights' data type; in bfloat16 or float16 it soon is too large for small "
    "addends to change it.",
)
def low_precision_accumulation(history: History) -> Iterator[Finding]:
    for lane in history.lanes:
        low = [w for w in history.of(lane) if w.dtype in (torch.bfloat16, torch.float16) and w.size > 1]
        if low:
            dtype, longest = str(low[0].dtype).removeprefix("torch."), max(w.size for w in low)
            yield Finding(
                ADVICE,
                f"{count_noun(longest, 'micro-batch')} are added up in {dtype}: small addends are lost",
                evidence={"update": low[0].number, "dtype": dtype, "window": longest},
                fix="keep the weights in float32 and use autocast, or add the gradients up in a float32 buffer",
                where=low[0].where,
                lane=lane,
            )
