"""What costs memory or precision, though the loop may be correct; and losses that nothing learns from."""

import re
from collections.abc import Iterator

import torch

from gradaudit.compare.columns import nearly_equal
from gradaudit.compare.rules import ADVICE, Difference, rule
from gradaudit.history import PROBED_GRAPHS, AuditedCall, AuditedLedger, History, count_noun

_MANY = 5  # graphs that are kept
_LOGGED = re.compile(r"avg|average|mean|running|total|epoch|log|smooth|ema|best|val|eval|metric|hist", re.I)


@rule("held-graphs")
def held_graphs(history: History) -> Iterator[Difference]:
    """Graphs that are kept longer than for their own backward call.

    Symptom: Memory grows with N, or from batch to batch.
    Cause: Backward is called once on a sum of losses, or something keeps the losses, so activations of several micro-
        batches are in memory together.
    Fix: Call backward on each micro-batch; log .item() or .detach().
    Wrong:
        total = 0
        for x, y in window:
            total = total + criterion(model(x), y) / len(window)
        total.backward()
    Correct:
        for x, y in window:
            (criterion(model(x), y) / len(window)).backward()
    Reported: meta-pytorch/torchtune/pull/1917, BatsResearch/labelmodels/issues/4
    """
    again = list(dict.fromkeys(_counted_again(history)))
    if again:
        text = f"{count_noun(len(again), 'backward call')} went through a loss that an earlier one of the window had "
        text += "used, whose gradient counts again"
        fix = "call backward on each loss once, and detach() what is added up for the log"
        yield Difference("counted again", None, again[0].where, text, (), again, fix=fix, calls=len(again))
    longest = max(history.calls, key=lambda call: call.passes, default=None)
    if longest is not None and longest.passes > 2:  # two losses of one forward pass make two
        text = f"backward call {longest.number} also went back through what was computed before {longest.passes - 1} "
        text += "earlier calls: a tensor is carried over with its graph, such as a hidden state"
        fix = "detach() what is carried over, or add the losses up and call backward once at the end"
        numbers = {"passes": longest.passes, "backward_call": longest.number}
        yield Difference("carried graph", None, longest.where, text, fix=fix, level=ADVICE, **numbers)
    if not again:
        yield from _kept(history)
    yield from _together(history)


def _counted_again(history: History) -> Iterator[AuditedCall]:
    """Backward calls on a loss whose gradient the same window held already."""
    for update in history.updates:
        before = {call.number: call for call in update.fresh if not (update.assigned or update.rewritten)}
        again = [call for call in before.values() if call.again in before]
        yield from (call for call in again if not _apart(call, before[call.again], update.ledger))


def _apart(call: AuditedCall, other: AuditedCall, ledger: AuditedLedger) -> bool:
    """Do they reach different parameters, as where each of two parts is named with `inputs`?"""
    one, two = call.reach.get(ledger), other.reach.get(ledger)
    return one is not None and two is not None and one.isdisjoint(two)


def _kept(history: History) -> Iterator[Difference]:
    """Graphs of earlier backward calls that something keeps."""
    call = max(history.calls, key=lambda call: call.alive, default=None)
    if call is not None and call.alive >= _MANY and call.alive > history.calls.total / 4:
        roughly = "about " * (call.number > PROBED_GRAPHS)  # from then on not every graph is looked at
        text = f"the graphs of {roughly}{call.alive} earlier losses were alive at backward call {call.number}: "
        text += "something keeps the losses, such as a sum for the log"
        numbers = {"graphs_alive": call.alive, "backward_call": call.number}
        fix = "add up loss.item() or loss.detach()"
        yield Difference("kept", None, call.where, text, fix=fix, level=ADVICE, **numbers)


def _together(history: History) -> Iterator[Difference]:
    """A window whose micro-batches share one backward call."""
    single = {update.fresh[0].number: update.fresh[0] for update in history.updates if len(update.fresh) == 1}
    calls = [call for call in single.values() if call.graphs > 2 and _count_alike(call)]
    if len(calls) == sum(number <= PROBED_GRAPHS for number in single) > 0:  # else they are weighed against each other
        text = f"one backward call went through {calls[0].graphs} forward passes that have nothing in common: all of "
        text += "their activations were in memory at once"
        numbers = {"graphs": calls[0].graphs, "calls": len(calls)}
        yield Difference("one call for several", None, calls[0].where, text, fix="", level=ADVICE, **numbers)


def _count_alike(call: AuditedCall) -> bool:
    return bool(call.terms) and nearly_equal([term.coefficient for term in call.terms])


@rule("unused-loss")
def unused_losses(history: History) -> Iterator[Difference]:
    """Losses with names that no backward call ever reached.

    Symptom: A logged loss doesn't fall, and its weight makes no difference.
    Cause: The loss is computed and logged, but it isn't part of what backward is called on.
    Fix: Add it to the total, or compute it under no_grad().
    Wrong:
        loss = criterion(model(x), y)
        penalty = 0.01 * model.weight.square().sum()
        loss.backward()
    Correct:
        loss = criterion(model(x), y)
        penalty = 0.01 * model.weight.square().sum()
        (loss + penalty).backward()
    Reported: mims-harvard/TFC-pretraining/issues/37
    """
    for name, where, seen in history.unused_losses:
        if seen >= 3 and not _LOGGED.search(name):
            many = count_noun(seen, "update")
            text = f"no backward call reaches the loss {name}, which has a graph; it was there before {many}"
            yield Difference("unused", None, where, text, fix="", level=ADVICE, loss=name, updates=seen)


@rule("batchnorm")
def batchnorm(history: History) -> Iterator[Difference]:
    """Layers that normalize each micro-batch by itself.

    Symptom: The gradient depends on what else is in the micro-batch.
    Cause: In training mode the layer normalizes by its own micro-batch, so a window of N isn't the same as one batch of
        N times the size.
    Fix: Use GroupNorm or LayerNorm, or freeze the layer with eval().
    Wrong:
        model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64))
    Correct:
        model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.GroupNorm(8, 64))
    Reported: giotto-ai/giotto-deep/issues/75
    """
    for ledger in history.stepped:
        moved = [u for u in ledger.updates if u.size > 1 and all(call.batchnorm for call in u.micro_batches)]
        if moved:
            n = moved[0].size
            text = f"BatchNorm normalises each of {count_noun(n, 'micro-batch')} by itself, and its running statistics "
            text += f"move {n} times per update"
            yield Difference("batchnorm", ledger, moved[0].where, text, moved, level=ADVICE, moves_per_update=n)


@rule("low-precision-accumulation")
def low_precision(history: History) -> Iterator[Difference]:
    """Gradients that are added up in a type of few digits.

    Symptom: A long window loses small gradients.
    Cause: The gradient's sum has the weights' data type; in bfloat16 or float16 it soon is too large for small addends
        to change it.
    Fix: Use float32 weights under autocast, or a sum in float32.
    Wrong:
        model = model.to(torch.bfloat16)
        for x, y in window:
            (criterion(model(x), y) / len(window)).backward()
    Correct:
        for x, y in window:
            with torch.autocast("cuda", torch.bfloat16):
                loss = criterion(model(x), y) / len(window)
            loss.backward()
    Reported: linkedin/Liger-Kernel/pull/830
    """
    for ledger in history.stepped:
        low = [u for u in ledger.updates if u.dtype in (torch.bfloat16, torch.float16) and u.size > 1]
        if low:
            dtype, longest = str(low[0].dtype).removeprefix("torch."), max(update.size for update in low)
            text = f"{count_noun(longest, 'micro-batch')} are added up in {dtype}: small addends are lost"
            numbers = {"dtype": dtype, "window": longest}
            yield Difference("low precision", ledger, low[0].where, text, low, level=ADVICE, **numbers)
