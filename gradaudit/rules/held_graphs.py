"""Graphs that are kept in memory, or used twice."""

from collections.abc import Iterator

from gradaudit.columns import nearly_equal
from gradaudit.history import PROBED_GRAPHS, AuditedCall, History, count_noun
from gradaudit.rules.rule import ADVICE, Finding, finding, rule

_MANY = 5  # graphs that are kept


@rule("held-graphs", lambda history: history.calls, "no backward call was seen")
def held_graphs(history: History) -> Iterator[Finding]:
    """Graphs that are kept longer than for their own backward call.

    Symptom: Memory grows with N, or from batch to batch.
    Cause: Backward is called once on a sum of losses, or something keeps the losses, so activations of several
        micro-batches are in memory together.
    Fix: Call backward on each micro-batch; log .item() or .detach().
    Known problems: Only in the first backward calls are the forward passes behind a sum of losses told apart.
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
        share = all(call.forward != call.number and call.goes_anew for call in again)
        reasons = ["losses of one forward pass may share a term"] * share
        yield finding(None, again[0].where, text, reasons=reasons, fix=fix, calls=len(again))
    longest = max(history.calls, key=lambda call: call.passes, default=None)
    if longest is not None and longest.passes > 2:  # two losses of one forward pass make two
        text = f"backward call {longest.number} also went back through what was computed before {longest.passes - 1} "
        text += "earlier calls: a tensor is carried over with its graph, such as a hidden state"
        fix = "detach() what is carried over, or add the losses up and call backward once at the end"
        yield finding(None, longest.where, text, fix=fix, level=ADVICE, backward_call=longest.number)
    if not again:
        yield from _kept(history)
    yield from _together(history)


def _counted_again(history: History) -> Iterator[AuditedCall]:
    """Backward calls on a loss whose gradient the same window held already."""
    for update in history.updates:
        before = {call.number: call for call in update.fresh if not (update.assigned or update.rewritten)}
        yield from (call for call in before.values() if call.again in before)


def _kept(history: History) -> Iterator[Finding]:
    """Graphs of earlier backward calls that something keeps."""
    call = max(history.calls, key=lambda call: call.alive, default=None)
    if call is not None and call.alive >= _MANY and call.alive > history.calls.total / 4:
        text = f"the graphs of {call.alive} earlier losses were alive at backward call {call.number}: "
        text += "something keeps the losses, such as a sum for the log"
        fix = "add up loss.item() or loss.detach()"
        yield finding(None, call.where, text, fix=fix, level=ADVICE, graphs_alive=call.alive)


def _together(history: History) -> Iterator[Finding]:
    """A window whose micro-batches share one backward call."""
    alone = {update.fresh[0].number: update.fresh[0] for update in history.updates if len(update.fresh) == 1}
    probed = [call for call in alone.values() if call.number <= PROBED_GRAPHS]
    if probed and all(call.graphs > 2 and _count_alike(call) for call in probed):  # else they are weighted
        text = f"one backward call went through {probed[0].graphs} forward passes that have nothing in common: all of "
        text += "their activations were in memory at once"
        yield finding(None, probed[0].where, text, fix="", level=ADVICE, graphs=probed[0].graphs)


def _count_alike(call: AuditedCall) -> bool:
    return bool(call.terms) and nearly_equal([term.coefficient for term in call.terms])
