"""Steps that find nothing."""

from collections.abc import Iterator

from gradaudit.history import AuditedLedger, AuditedUpdate, History, count_noun
from gradaudit.rules.orphan_parameters import trained_elsewhere
from gradaudit.rules.rule import ERROR, UNDECIDED, Finding, finding, rule
from gradaudit.rules.stale_gradients import two_steps_in_a_row


@rule("empty-step", lambda history: history.stepped, "no step was seen")
def empty(history: History) -> Iterator[Finding]:
    """Steps that found no gradient.

    Symptom: Weights stand still; before the step there is no gradient.
    Cause: The step comes before the backward or after the zeroing, or a window holds no target at all; momentum and
        weight decay still act.
    Fix: Backward, step, zero, in this order.
    Known problems: A first step without gradients, as before the loop, isn't counted.
    Wrong:
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
    Correct:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    Reported: sacmehta/EdgeNets/issues/14, lightseekorg/TorchSpec/pull/33
    """
    for ledger in history.stepped:
        found = [u for u in ledger.updates if not (u.held or u.assigned or u.skipped)]
        only_the_first = [update.number for update in found] == [1] and ledger.made > 1
        if not found or only_the_first or not ledger.trained or _harmless(history, ledger, found):
            continue
        masked = any(u.zeros and {t.count for call in u.zeros for t in call.terms} == {0} for u in found)
        level, fix = ERROR, two_steps_in_a_row(ledger, found[0])
        text = f"{len(found)} of {count_noun(ledger.made, 'step')} found no gradient"
        put_in = all(update.dtype for update in found) and not history.calls_of(ledger)
        if put_in or all(u.came_as_zeros or u.zeros for u in found):
            level = ERROR if masked else UNDECIDED  # or a margin is kept, or the script puts zeros in
            text += " other than zeros" + ", as from a loss without a target" * masked
            fix = "skip the step of a window that holds nothing: momentum and weight decay would still act"
        yield finding(ledger, found[0].where, text, found, fix=fix, level=level, empty=len(found))


def _harmless(history: History, ledger: AuditedLedger, found: list[AuditedUpdate]) -> bool:
    """Whether every .grad was None, which changes nothing, and no gradient of it was lost or went elsewhere."""
    missed = ledger.lost_calls or ledger.left_over or trained_elsewhere(history, ledger)
    unused = history.losses and not (history.calls.total or history.grads)  # none ever went back
    missed = missed or unused
    return all(update.dtype is None for update in found) and not missed
