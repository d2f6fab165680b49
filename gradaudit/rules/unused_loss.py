"""Losses that nothing learns from."""

import re
from collections.abc import Iterator

from gradaudit.callsite import Place
from gradaudit.history import History, count_noun
from gradaudit.lines import assigned, condition_of
from gradaudit.rules.rule import ADVICE, Finding, finding, rule

_LOGGED = re.compile(r"avg|average|mean|running|total|epoch|log|smooth|ema|best|val|eval|metric|hist", re.I)


@rule("unused-loss", lambda history: history.calls, "no backward call was seen")
def unused_losses(history: History) -> Iterator[Finding]:
    """Losses that no backward call reached: by their names, or of one line all but one in so many.

    Symptom: A logged loss doesn't fall, and its weight makes no difference.
    Cause: The loss is computed and logged, but it isn't part of what backward is called on. Or backward() stands under
        the condition that belongs to the step, so that most micro-batches never go back.
    Fix: Add it to the total, or compute it under no_grad().
    Known problems: A loss function that a script imported by name before the audit isn't watched, and a loss whose
        name says that it is for the log isn't told.
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
    if history.left_out:
        where, went, made = history.left_out
        text = f"{went} of {count_noun(made, 'loss')} made at this line went back"
        reasons = [] if _under_the_steps_test(history, where) else ["the others may be left out on purpose"]
        fix = "call backward() on each micro-batch's loss: only the step belongs into the condition"
        yield finding(None, where, text, reasons=reasons, fix=fix, went_back=went, made=made)
    for name, where, seen in history.unused_losses:
        if seen >= 3 and not _LOGGED.search(name):
            many = count_noun(seen, "update")
            text = f"no backward call reaches the loss {name}, which has a graph; it was there before {many}"
            yield finding(None, assigned(Place(where), name), text, fix="", level=ADVICE, loss=name, updates=seen)


def _under_the_steps_test(history: History, loss: str) -> bool:
    """Whether backward() stands with the step under a test that counts, as `(i + 1) % n == 0`, and the loss doesn't."""
    tests = {(condition_of(u.where), condition_of(u.fresh[0].where)) for u in history.updates if u.fresh}
    return any(step is not None and step == backward != condition_of(loss) for step, backward in tests)
