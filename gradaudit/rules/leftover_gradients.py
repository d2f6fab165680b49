"""Gradients that are still there when an epoch or the run ends."""

from collections.abc import Iterator

from gradaudit.history import AuditedCall, AuditedLedger, History, count_noun
from gradaudit.lines import condition_of
from gradaudit.rules.discarded_gradients import DROPPED_WHOLE, by_zeroing, useful_sites, whole_windows
from gradaudit.rules.irregular_window import carried_over
from gradaudit.rules.rule import Finding, by_framework, finding, rule

_COUNT = "pass Accelerator(gradient_accumulation_steps={}) instead of dividing the losses; "
_PREPARE = (
    "pass the data loader through accelerator.prepare(), and put each micro-batch into "
    "`with accelerator.accumulate(model):`, which also steps at the end of the data; multiply the losses of that "
    "window by N / its micro-batches"
)


@rule("leftover-gradients", lambda history: history.calls and not history.failed, "the run's own end was not seen")
def left_over(history: History) -> Iterator[Finding]:
    """Gradients that no step had used when an epoch ended: still there at the end, or in the next epoch's first update.

    Symptom: Fewer updates than batches / N, rounded up.
    Cause: The number of micro-batches isn't a multiple of N, and nothing steps after the last of an epoch: they are
        lost, or join the next epoch's first update.
    Fix: Make an update from the short window where an epoch, or the run, ends, and divide by what it holds.
    Known problems: Where batches come from no DataLoader, the end of an epoch is inferred from the windows' sizes.
    Wrong:
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y) / n).backward()
            if (i + 1) % n == 0:
                optimizer.step()
                optimizer.zero_grad()
    Correct:
        for window in windows(loader, n):  # the last may be shorter
            for x, y in window:
                (criterion(model(x), y) / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
    Reported: timoschick/pet/issues/36, meta-pytorch/torchtune/pull/2745
    """
    for ledger in history.ledgers if not history.failed else ():
        if calls := ledger.left_over:
            where = next((condition_of(update.where) for update in ledger.updates[-1:]), None) or calls[-1].where
            last = count_noun(len(calls), "backward call").removeprefix("1 ")
            text = f"no step used the gradients of the last {last}"
            fix, reasons = _fix(history, ledger, calls, where), _reasons(history, ledger, calls)
            yield finding(ledger, where, text, reasons=reasons, fix=fix, backward_calls=len(calls))
    for ledger in history.stepped if not history.declared else ():
        if over := carried_over(ledger):
            window, n = over
            seen = len(window.epochs) > 1
            text = f"update {window.number} holds {count_noun(window.size, 'micro-batch')}, {window.size - n} more "
            text += f"than others: they were {'' if seen else 'apparently '}left over at an epoch's end"
            where = condition_of(window.where) or window.where
            yield finding(ledger, where, text, [window], size=window.size, usual=n)


def _fix(history: History, ledger: AuditedLedger, calls: list[AuditedCall], where: str) -> str | None:
    own = _PREPARE if history.by_framework else _COUNT.format(history.size(ledger) or "N") + _PREPARE
    fix, last = by_framework(history, ledger, where, accelerate=own), ledger.updates[-1:]
    if fix is None and last and 2 * len(calls) >= len(history.calls_of(ledger)):  # it is no tail
        fix = f"the last step, on line {last[0].where.rpartition(':')[2]}, came long before the end: let its "
        fix += "condition count micro-batches; a count of updates stands still as soon as no update is made"
    return fix


def _reasons(history: History, ledger: AuditedLedger, calls: list[AuditedCall]) -> Iterator[str]:
    useful = useful_sites(history, ledger)
    if useful and all(call.site not in useful for call in calls):
        yield "no call from there ever reaches a step, which may be intended"
    if history.cut_short:
        yield "the run ended in the middle of the data, before its step"
    if ledger.lost_calls and whole_windows(ledger, [*by_zeroing(ledger.lost_calls), calls]):
        yield DROPPED_WHOLE
