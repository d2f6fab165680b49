"""Gradients that are used again."""

from collections.abc import Iterator

from gradaudit.callsite import short
from gradaudit.history import AuditedLedger, AuditedUpdate, History, count_noun
from gradaudit.rules.rule import Finding, finding, rule


def _steps_twice(history: History) -> bool:
    return any(ledger.made > 1 for ledger in history.ledgers)


@rule("stale-gradients", _steps_twice, "no optimizer made two steps")
def stale(history: History) -> Iterator[Finding]:
    """Gradients that an earlier step has used as well.

    Symptom: Training is faster at a small learning rate, and diverges at a usual one.
    Cause: Each backward adds to .grad, and a step leaves it as it was, so gradients that nothing clears count again in
        every later update.
    Fix: Zero between each step and the next backward, also after a skipped step.
    Known problems: A line search that steps again with one gradient, or a script that keeps its momentum in .grad, is
        taken for a loop that forgets to zero.
    Wrong:
        for x, y in loader:
            criterion(model(x), y).backward()
            optimizer.step()
    Correct:
        for x, y in loader:
            criterion(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    Reported: wenet-e2e/wekws/issues/72, IDEA-Research/DN-DETR/issues/19, ajbrock/BigGAN-PyTorch/issues/25
    """
    for ledger in history.stepped:
        if again := [update for update in ledger.updates if update.stale]:
            first, used = again[0], count_noun(again[0].stale, "backward call")
            text = f"update {first.number} used the gradients of {used} that an earlier step had already used; "
            text += f"{len(again):,} of {count_noun(len(ledger.updates), 'update')} do so"
            replaced = all(update.replaced for update in again)
            reasons = ["the script puts other gradients in their place before the step"] if replaced else ()
            fix = two_steps_in_a_row(ledger, first)
            yield finding(ledger, first.where, text, again, reasons, fix=fix, updates_affected=len(again))


def two_steps_in_a_row(ledger: AuditedLedger, second: AuditedUpdate) -> str | None:
    """The fix if `second` repeats the step before it with no backward call in between; None otherwise."""
    place = ledger.updates.index(second)
    first = ledger.updates[place - 1]
    new = second.at != first.at or second.assigned or second.skipped
    if not place or new or not first.fresh:
        return None
    if first.where == second.where:
        return "two steps follow each other: let the line step only after a backward pass"
    return f"two steps follow each other, at {short(first.where)} and {short(second.where)}: remove one of them"
