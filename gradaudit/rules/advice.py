"""What costs memory or precision, though the loop may be correct."""

from collections.abc import Iterator

import torch

from gradaudit.history import PROBED_GRAPHS, AuditedCall, History, count_noun
from gradaudit.rules.registry import ADVICE, ERROR, UNDECIDED, Finding, rule
from gradaudit.rules.terms import nearly_equal


@rule(
    "held-graphs",
    symptom="Memory grows with N, or from batch to batch.",
    fix="Call backward on each micro-batch; log .item() or .detach().",
    cause="Backward is called once on a sum of losses, or something keeps the losses, so activations of several "
    "micro-batches are in memory together.",
)
def held_graphs(history: History) -> Iterator[Finding]:
    again = list(dict.fromkeys(_counted_again(history)))
    if again:
        yield Finding(
            ERROR if len(again) > 1 else UNDECIDED,
            f"{count_noun(len(again), 'backward call')} went through a loss that an earlier call of the same window "
            "had gone through: its graph is kept, and its gradient counts once for every call",
            evidence={"calls": len(again)},
            fix="call backward on each loss once, and detach() what is added up for the log",
            where=again[0].where,
        )
    yield from _carried(history)
    if not again:
        yield from _kept(history)
    yield from _together(history)


def _counted_again(history: History) -> Iterator[AuditedCall]:
    """Backward calls on a loss whose gradient the same window held already."""
    for w in (w for w in history.updates if not (w.assigned or w.rewritten)):
        before = {call.number: call for call in w.fresh}
        again = [call for call in w.fresh if call.again in before]
        yield from (call for call in again if not _apart(call, before[call.again], w.record))


def _apart(call: AuditedCall, other: AuditedCall, lane: int) -> bool:
    """Do they reach different parameters, as where each of two parts is named with `inputs`?"""
    one, two = call.reach.get(lane), other.reach.get(lane)
    return one is not None and two is not None and one.isdisjoint(two)


def _carried(history: History) -> Iterator[Finding]:
    """A state that goes from micro-batch to micro-batch with its graph."""
    longest = max(history.calls, key=lambda call: call.passes, default=None)
    if longest is not None and longest.passes > 2:  # two losses of one forward pass make two
        yield Finding(
            ADVICE,
            f"backward call {longest.number} also went back through what was computed before each of "
            f"{longest.passes - 1} earlier calls: a tensor is carried over with its graph, such as a hidden state",
            evidence={"passes": longest.passes, "backward_call": longest.number},
            fix="detach() what is carried over, or add the losses up and call backward once at the end",
            where=longest.where,
        )


def _kept(history: History) -> Iterator[Finding]:
    """Graphs of earlier backward calls that something keeps: their losses, or anything else of the forward pass."""
    losses = max(history.calls, key=lambda call: call.alive, default=None)
    parts = max(history.calls, key=lambda call: call.kept, default=None)
    total = history.calls.total
    if losses is not None and losses.alive >= 5 and losses.alive > total / 4:
        about = "about " if losses.number > PROBED_GRAPHS else ""  # from then on not every graph is looked at
        yield Finding(
            ADVICE,
            f"the graphs of {about}{losses.alive} earlier losses were still alive at backward call {losses.number}: "
            "something keeps the losses themselves, such as a sum for the log",
            evidence={"graphs_alive": losses.alive, "backward_call": losses.number},
            fix="add up loss.item() or loss.detach()",
            where=losses.where,
        )
    elif parts is not None and parts.kept >= 5 and parts.kept > min(total, PROBED_GRAPHS) / 2:
        yield Finding(
            ADVICE,
            f"the graphs of {parts.kept} earlier forward passes were still alive at backward call {parts.number}: "
            "something keeps tensors of them, such as a list of outputs or features",
            evidence={"graphs_alive": parts.kept, "backward_call": parts.number},
            fix="detach() what is collected",
            where=parts.where,
        )


def _together(history: History) -> Iterator[Finding]:
    """A window whose micro-batches share one backward call."""
    single = {w.fresh[0].number: w.fresh[0] for w in history.updates if len(w.fresh) == 1}
    calls = {number: call for number, call in single.items() if call.graphs > 2 and _count_alike(call)}
    if len(calls) == sum(number <= PROBED_GRAPHS for number in single) > 0:  # else they are weighed against each other
        first = next(iter(calls.values()))
        yield Finding(
            ADVICE,
            f"one backward call went through {first.graphs} forward passes that have nothing in common: the "
            "activations of all of them were in memory at once",
            evidence={"graphs": first.graphs, "calls": len(calls)},
            fix="if these are micro-batches, call backward on each before the next forward pass: the sum is the same",
            where=first.where,
        )


def _count_alike(call: AuditedCall) -> bool:
    return bool(call.terms) and nearly_equal([term.coefficient for term in call.terms])


@rule(
    "batchnorm",
    symptom="The gradient depends on what else is in the micro-batch.",
    fix="Use GroupNorm or LayerNorm, or freeze the layer with eval().",
    cause="In training mode the layer normalizes by its own micro-batch, so a window of N isn't the same as one "
    "batch of N times the size.",
)
def batchnorm(history: History) -> Iterator[Finding]:
    for lane in history.stepped:
        moved = [w for w in lane.updates if w.size > 1 and w.batchnorm >= w.size]
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
    for lane in history.stepped:
        low = [w for w in lane.updates if w.dtype in (torch.bfloat16, torch.float16) and w.size > 1]
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
