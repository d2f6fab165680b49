"""What costs memory or precision, though the loop may be correct; and losses that nothing learns from."""

import re
from collections.abc import Iterator

import torch

from gradaudit.compare import Difference
from gradaudit.compare.columns import nearly_equal
from gradaudit.history import PROBED_GRAPHS, AuditedCall, AuditedRecord, History

_MANY = 5  # graphs that are kept
_LOGGED = re.compile(r"avg|average|mean|running|total|epoch|log|smooth|ema|best|val|eval|metric|hist", re.I)


def held_graphs(history: History) -> Iterator[Difference]:
    """Graphs that are kept longer than for their own backward call."""
    again = list(dict.fromkeys(_counted_again(history)))
    if again:
        yield Difference("counted again", None, again[0].where, (), again, calls=len(again))
    longest = max(history.calls, key=lambda call: call.passes, default=None)
    if longest is not None and longest.passes > 2:  # two losses of one forward pass make two
        numbers = {"passes": longest.passes, "backward_call": longest.number, "earlier": longest.passes - 1}
        yield Difference("carried graph", None, longest.where, **numbers)
    if not again:
        yield from _kept(history)
    yield from _together(history)


def _counted_again(history: History) -> Iterator[AuditedCall]:
    """Backward calls on a loss whose gradient the same window held already."""
    for update in history.updates:
        before = {call.number: call for call in update.fresh if not (update.assigned or update.rewritten)}
        again = [call for call in before.values() if call.again in before]
        yield from (call for call in again if not _apart(call, before[call.again], update.record))


def _apart(call: AuditedCall, other: AuditedCall, record: AuditedRecord) -> bool:
    """Do they reach different parameters, as where each of two parts is named with `inputs`?"""
    one, two = call.reach.get(record), other.reach.get(record)
    return one is not None and two is not None and one.isdisjoint(two)


def _kept(history: History) -> Iterator[Difference]:
    """Graphs of earlier backward calls that something keeps: their losses, or anything else of the forward pass."""
    losses = max(history.calls, key=lambda call: call.alive, default=None)
    parts = max(history.calls, key=lambda call: call.kept, default=None)
    total = history.calls.total
    if losses is not None and losses.alive >= _MANY and losses.alive > total / 4:
        about = "about " * (losses.number > PROBED_GRAPHS)  # from then on not every graph is looked at
        numbers = {"graphs_alive": losses.alive, "backward_call": losses.number}
        yield Difference("kept losses", None, losses.where, roughly=about, **numbers)
    elif parts is not None and parts.kept >= _MANY and parts.kept > min(total, PROBED_GRAPHS) / 2:
        yield Difference("kept parts", None, parts.where, graphs_alive=parts.kept, backward_call=parts.number)


def _together(history: History) -> Iterator[Difference]:
    """A window whose micro-batches share one backward call."""
    single = {update.fresh[0].number: update.fresh[0] for update in history.updates if len(update.fresh) == 1}
    calls = [call for call in single.values() if call.graphs > 2 and _count_alike(call)]
    if len(calls) == sum(number <= PROBED_GRAPHS for number in single) > 0:  # else they are weighed against each other
        zeroed = any(call.zeroed_inside for call in calls)  # which would erase what a call for each brings
        kind = "one call for tasks" if zeroed else "one call for several"
        yield Difference(kind, None, calls[0].where, graphs=calls[0].graphs, calls=len(calls))


def _count_alike(call: AuditedCall) -> bool:
    return bool(call.terms) and nearly_equal([term.coefficient for term in call.terms])


def unused_losses(history: History) -> Iterator[Difference]:
    """Losses with names that no backward call ever reached."""
    for loss in history.losses:
        seen = len(loss.updates)
        if not (loss.reached or _LOGGED.search(loss.name)) and seen >= 3 and 2 * seen >= history.looked_for_losses:
            yield Difference("unused", None, loss.where, loss=loss.name, updates=seen)


def batchnorm(history: History) -> Iterator[Difference]:
    """Layers that normalize each micro-batch by itself."""
    for record in history.stepped:
        moved = [u for u in record.updates if u.size > 1 and all(call.batchnorm for call in u.micro_batches)]
        if moved:
            numbers = {"window": moved[0].size, "moves_per_update": moved[0].size}
            yield Difference("batchnorm", record, moved[0].where, moved, **numbers)


def low_precision(history: History) -> Iterator[Difference]:
    """Gradients that are added up in a type of few digits."""
    for record in history.stepped:
        low = [u for u in record.updates if u.dtype in (torch.bfloat16, torch.float16) and u.size > 1]
        if low:
            dtype, longest = str(low[0].dtype).removeprefix("torch."), max(update.size for update in low)
            yield Difference("low precision", record, low[0].where, low, dtype=dtype, window=longest)
