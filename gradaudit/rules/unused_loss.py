"""Losses that nothing learns from."""

from collections.abc import Iterator

from gradaudit.history import History, count_noun
from gradaudit.lines import condition_of
from gradaudit.rules.rule import ADVICE, Finding, finding, rule


@rule("unused-loss", lambda history: history.losses, "no loss of PyTorch's own functions was seen")
def unused_losses(history: History) -> Iterator[Finding]:
    """Losses that no backward call went through: all of a line, or all but one in so many.

    Symptom: A logged loss doesn't fall, and its weight makes no difference.
    Cause: The loss is computed and logged, but it isn't part of what backward is called on. Or backward() stands under
        the condition that belongs to the step, so that most micro-batches never go back.
    Fix: Add it to the total, or compute it under no_grad().
    Known problems: Only losses of PyTorch's own functions are followed, and none of a function that a script imported
        by name before the audit. A loss that is only for the log is told as well.
    Wrong:
        loss = criterion(model(x), y)
        distance = F.mse_loss(model(x), teacher(x))
        loss.backward()
    Correct:
        loss = criterion(model(x), y)
        distance = F.mse_loss(model(x), teacher(x))
        (loss + distance).backward()
    Reported: mims-harvard/TFC-pretraining/issues/37
    """
    used = [each for each in history.losses if each[1]]
    for where, went, made in history.losses:
        text = f"{went or 'none'} of {count_noun(made, 'loss')} made at this line went back"
        if made >= 3 and where not in {each[0] for each in used}:  # another caller's losses of this line may go back
            yield finding(None, where, text, level=ADVICE, went_back=went, made=made)
        elif went < made and used == [(where, went, made)]:  # beside others, a loss may have its turn now and then
            reasons = [] if _under_the_steps_test(history, where) else ["the others may be left out on purpose"]
            fix = "call backward() on each micro-batch's loss, divided by N: only the step belongs into the condition"
            yield finding(None, where, text, reasons=reasons, fix=fix, went_back=went, made=made)


def _under_the_steps_test(history: History, loss: str) -> bool:
    """Whether backward() stands with the step under a test that counts, as `(i + 1) % n == 0`, and the loss doesn't."""
    tests = {(condition_of(u.where), condition_of(u.fresh[0].where)) for u in history.updates if u.fresh}
    return any(step is not None and step == backward != condition_of(loss) for step, backward in tests)
