"""Parameters that an optimizer should hold, or should not."""

from collections.abc import Iterator

from gradaudit.history import AuditedLedger, History, count_noun
from gradaudit.rules.rule import ADVICE, ERROR, Finding, finding, rule


@rule("orphan-parameters", lambda history: history.ledgers, "no optimizer received a gradient")
def orphans(history: History) -> Iterator[Finding]:
    """Parameters that an optimizer holds and that are not trained, and others that are trained and that none holds.

    Symptom: A part never changes; its .grad stays None.
    Cause: The optimizer was created from other tensors than those that are trained, as before the model was moved,
        wrapped or given a new layer.
    Fix: Create the optimizer from the model after moving or wrapping it.
    Known problems: A parameter that a script keeps in a module beside the one that it trains counts as the model's.
    Wrong:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.head = nn.Linear(64, 10)
    Correct:
        model.head = nn.Linear(64, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Reported: huggingface/accelerate/issues/2665, openvinotoolkit/nncf/pull/327
    """
    count, where = history.unowned
    known = [ledger for ledger in history.ledgers if not (ledger.by_itself or ledger.trained is None)]
    for ledger in sorted(known, key=lambda ledger: ledger.trained > 0):
        never, trained = ledger.never.total(), ledger.trained
        text = f"{never} of its {count_noun(trained, 'parameter')} never received a gradient"
        place = ledger.updates[0].where if ledger.updates else ""
        gone = bool(count) and ledger.gone > 0
        if gone and never < trained:
            text = f"{count_noun(ledger.gone, 'parameter')} that it holds belong to no module any more"
        replaced = gone or trained_elsewhere(history, ledger)
        if never == trained or replaced:  # its parameters are not, or are no longer, those of the model
            alone = not any(other.never.total() < other.trained for other in known)  # no optimizer trains anything
            certain = bool(count) and (replaced or not trained or alone)
            text = text if trained else "all of its parameters are frozen"
            text += f", and {count_noun(count, 'parameter')} that no optimizer holds did" * bool(count)
            reasons = () if certain else ["nothing is seen to be trained in their place"]
            level, fix = ERROR if count or trained else ADVICE, None if count else ""
            yield finding(ledger, where or place, text, reasons=reasons, fix=fix, level=level, without_gradient=never)
            return
        if never:
            yield finding(ledger, place, text, fix="", level=ADVICE, without_gradient=never)
        yield from _moved_by_zeros(ledger, place)
    if count:
        text = f"no optimizer holds {count_noun(count, 'parameter')} that received gradients"
        fix = "give them to an optimizer, or freeze them with requires_grad_(False), which saves memory"
        yield finding(None, where, text, fix=fix, level=ADVICE, unowned_with_gradient=count)


def _moved_by_zeros(ledger: AuditedLedger, place: str) -> Iterator[Finding]:
    """Parameters that are no longer used, but whose `.grad` is zeros and not None, so that a step moves them on."""
    if ledger.idle:
        since = min(ledger.idle.values())
        text = f"{count_noun(len(ledger.idle), 'parameter')} received no gradient after window {since}, and .grad "
        text += "holds zeros: momentum, running averages and weight decay go on moving them"
        fix = "let zero_grad() set .grad to None, which it does unless set_to_none=False"
        yield finding(ledger, place, text, fix=fix, level=ADVICE, idle=len(ledger.idle), last_window=since)


def trained_elsewhere(history: History, ledger: AuditedLedger) -> bool:
    """Whether parameters of no optimizer have the shapes of those that never received a gradient here.

    Where some of this ledger's did, the others are only known to have been replaced if nothing else is without one.
    """
    never, unowned = ledger.never, history.unowned_shapes
    alike = never <= unowned if never.total() == ledger.trained else never == unowned
    return bool(history.unowned[0] and never) and alike
