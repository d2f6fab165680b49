"""Losses that nothing learns from."""

import re
from collections.abc import Iterator

from gradaudit.history import History, count_noun
from gradaudit.rules.rule import ADVICE, Finding, finding, rule

_LOGGED = re.compile(r"avg|average|mean|running|total|epoch|log|smooth|ema|best|val|eval|metric|hist", re.I)


@rule("unused-loss", lambda history: history.calls, "no backward call was seen")
def unused_losses(history: History) -> Iterator[Finding]:
    """Losses with names that no backward call ever reached.

    Symptom: A logged loss doesn't fall, and its weight makes no difference.
    Cause: The loss is computed and logged, but it isn't part of what backward is called on.
    Fix: Add it to the total, or compute it under no_grad().
    Known problems: A loss whose name says that it is for the log isn't told.
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
            yield finding(None, where, text, fix="", level=ADVICE, loss=name, updates=seen)
