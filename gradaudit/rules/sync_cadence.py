"""Ranks, and when they exchange gradients."""

from collections.abc import Iterator

from gradaudit.history import History, count_noun
from gradaudit.rules.rule import ADVICE, CHANGED, Finding, finding, rule


@rule(
    "sync-cadence",
    lambda history: any(call.synced is not None for call in history.calls),
    "neither DDP nor FSDP was seen",
)
def synced(history: History) -> Iterator[Finding]:
    """Gradients that the ranks exchange too late, or too often.

    Symptom: The ranks drift apart, or run N all-reduces per update.
    Cause: DDP averages after every backward unless it runs under no_sync(), and the last micro-batch of a window must
        not.
    Fix: Use no_sync() on all micro-batches of a window but the last.
    Known problems: Ranks that run other numbers of updates, or hang, are not told.
    Wrong:
        with model.no_sync():
            for x, y in window:
                (criterion(model(x), y) / len(window)).backward()
        optimizer.step()
    Correct:
        for k, (x, y) in enumerate(window):
            last = k + 1 == len(window)
            with nullcontext() if last else model.no_sync():
                (criterion(model(x), y) / len(window)).backward()
        optimizer.step()
    Reported: karpathy/build-nanogpt/pull/30, speechbrain/speechbrain/issues/1802
    """
    for ledger in history.stepped:
        updates = [update for update in ledger.filled if all(call.synced is not None for call in update.fresh)]
        apart = [update for update in updates if not update.fresh[-1].synced]
        apart = [u for u in apart if not (u.rewritten and u.fresh[-1].beside)]  # the script averages by itself
        if apart:
            ranks = "" if apart[0].on_ranks else "on several ranks, "  # a loop is judged before it costs several GPUs
            text = f"{ranks}{len(apart)} of {count_noun(len(updates), 'update')} come before the last micro-batch is "
            text += "averaged over the ranks, which drift apart"
            fix = None
            if all(call.beside for update in apart for call in update.fresh):
                text = f"nothing was exchanged in {len(apart)} of {count_noun(len(updates), 'update')}: the forward "
                text += "pass went beside the DDP wrapper, so the ranks drift apart"
                fix = "call the wrapper itself, not .module"
            reasons = [CHANGED] * any(update.rewritten for update in ledger.filled)
            yield finding(ledger, apart[0].fresh[-1].where, text, apart, reasons, fix=fix, not_averaged=len(apart))
        if ledger.unwrapped:
            text = f"DDP exchanges no gradients of {count_noun(ledger.unwrapped, 'parameter')} that the optimizer holds"
            text += ": the wrapper doesn't know them"
            fix = "wrap the model after all of its layers are there"
            reasons = [CHANGED] * (ledger.hooked or any(update.rewritten for update in ledger.filled))
            yield finding(ledger, ledger.updates[0].where, text, reasons=reasons, fix=fix, unwrapped=ledger.unwrapped)
        # One process alone may leave out no_sync(), as some libraries do for it. With FSDP, to reduce each time is to
        # hold shards and not whole gradients.
        several = [update for update in updates if len(update.fresh) > 1 and update.on_ranks]
        often = [update for update in several if all(call.synced and not call.sharded for call in update.fresh)]
        if often:
            n = len(often[0].fresh)
            text = f"the ranks exchange gradients after each of {n} micro-batches; once per update is enough"
            yield finding(ledger, often[0].fresh[0].where, text, often, level=ADVICE, window=n)
