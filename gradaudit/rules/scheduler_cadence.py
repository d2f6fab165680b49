"""Schedules of learning rates, and the updates that they are for."""

from collections.abc import Iterator

from gradaudit.history import AuditedLedger, AuditedUpdate, History, count_noun
from gradaudit.rules.rule import Finding, by_framework, finding, rule

_PREPARE = (
    "pass the scheduler through accelerator.prepare(): inside accelerator.accumulate() it then steps with the optimizer"
)


@rule("scheduler-cadence", lambda history: any(each.schedule for each in history.ledgers), "no scheduler was stepped")
def scheduled(history: History) -> Iterator[Finding]:
    """Schedules that are stepped more or less often than updates are made.

    Symptom: The warm-up ends N times too early.
    Cause: A schedule whose lengths are counted in updates is stepped in the loop over micro-batches. Or one whose
        lengths are counted in micro-batches is stepped once per update.
    Fix: Step the scheduler once per update made; count lengths in updates.
    Known problems: A learning rate that the script sets itself isn't a scheduler's.
    Wrong:
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y) / n).backward()
            scheduler.step()
            if (i + 1) % n == 0:
                optimizer.step()
                optimizer.zero_grad()
    Correct:
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y) / n).backward()
            if (i + 1) % n == 0:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    Reported: Lightning-AI/pytorch-lightning/issues/1476, starVLA/starVLA/pull/210
    """
    for ledger in history.stepped:
        updates = ledger.filled
        steps = sum(len(update.scheduled) + len(update.scheduled_after) for update in updates)
        inside = [update for update in updates if not _right_before_the_step(update)]
        once_per_epoch = 2 * steps <= len(updates)  # a window may go on over the end of an epoch
        if inside and (len(inside) > 1 or len(inside[0].scheduled) > 1) and not once_per_epoch:
            where, many = inside[0].scheduled[0][1], count_noun(len(updates), "update")
            text = f"the scheduler was stepped inside windows: {count_noun(steps, 'time')} in {many}"
            fix = by_framework(history, ledger, where, accelerate=_PREPARE) if history.by_framework else None
            yield finding(ledger, where, text, inside, _reasons(ledger), fix=fix, scheduler_steps=steps)
        elif ledger.schedule is not None:
            yield from _of_another_length(history, ledger, updates)
        yield from _at_rate_zero(ledger)


def _reasons(ledger: AuditedLedger) -> Iterator[str]:
    schedule = ledger.schedule
    if any(0.9 * each <= schedule.steps <= each + 1 for each in schedule.lengths):
        yield "its length seems to be counted in the same way"
    elif schedule.own:
        yield "it follows a function or class of the script's own, which may count micro-batches"


def _right_before_the_step(update: AuditedUpdate) -> bool:
    """Was no scheduler stepped inside it, unless once and after its last backward call?"""
    return not update.scheduled or [after for after, _ in update.scheduled] == [len(update.fresh)]


def _of_another_length(history: History, ledger: AuditedLedger, updates: list[AuditedUpdate]) -> Iterator[Finding]:
    """Stepped so seldom that it never comes to its end, though its length is that of the run.

    That may be counted in micro-batches, where it is stepped once per update, or in updates, where it is stepped once
    per epoch.
    """
    schedule, n, where = ledger.schedule, history.size(ledger), _first_step(updates)
    unit, length = "updates", len(updates)
    if 2 * schedule.steps > length:  # it is stepped for each
        unit, length = "micro-batches", sum(update.size for update in updates) + len(ledger.left_over)
    if 0 < 2 * schedule.steps <= length in schedule.lengths and (n > 1 or unit == "updates"):
        text = f"the scheduler is as long as its run in {unit}, and was stepped through {schedule.steps:,} of its "
        text += f"{length:,} steps"
        fix = "count its length in updates" if unit == "micro-batches" else None
        yield finding(ledger, where, text, updates, fix=fix, scheduler_steps=schedule.steps, length=length)
    epochs = len({epoch for update in updates for epoch in update.epochs})
    if 1 < epochs == schedule.turns_at <= schedule.steps / 2:
        text = f"the cosine is {epochs} steps long, as many as the run has epochs, and was stepped {schedule.steps:,} "
        text += f"times: the rate falls and rises again every {2 * epochs} steps"
        fix = "count its length in updates, or step it once per epoch"
        yield finding(ledger, where, text, updates, fix=fix, scheduler_steps=schedule.steps, length=epochs)


def _first_step(updates: list[AuditedUpdate]) -> str:
    """Where the scheduler was stepped first, inside a window or after one; "" where nothing was trained by then."""
    inside = [where for update in updates for _, where in update.scheduled]
    return next(iter([*inside, *(where for update in updates for where in update.scheduled_after)]), "")


def _at_rate_zero(ledger: AuditedLedger) -> Iterator[Finding]:
    """Updates at a learning rate of 0 after others, so that the schedule came to its end before the run did."""
    if ledger.made_at_zero > 1:
        text = f"the last {ledger.made_at_zero} of {count_noun(ledger.made, 'update')} were made at a learning rate of "
        text += "0: the schedule came to its end before the run did"
        fix = "count its length in this run's updates; a scheduler that Accelerate prepared steps once for each rank"
        yield finding(ledger, ledger.updates[-1].where, text, fix=fix, at_zero=ledger.made_at_zero)
