"""Scalers: when the scale changes, and when it is taken out."""

from collections.abc import Iterator

from gradaudit.history import History, count_noun
from gradaudit.rules.rule import ADVICE, ERROR, Finding, finding, rule


def _scalers(history: History) -> bool:
    return bool(history.refused) or any(update.scaler for update in history.updates)


@rule("scaler-timing", _scalers, "no GradScaler made a step")
def scaled(history: History) -> Iterator[Finding]:
    """Scales that change, or are taken out, inside a window; and scalers that are made again.

    Symptom: Micro-batches count unequally, or the scaler refuses a call.
    Cause: The scale changes, or is taken out of .grad, between the micro-batches of a window, which then add gradients
        of different scales.
    Fix: One unscale_() and update() per window, one scaler per run.
    Known problems: A scaler that isn't PyTorch's isn't seen.
    Wrong:
        for k, (x, y) in enumerate(window):
            scaler.scale(criterion(model(x), y) / len(window)).backward()
            if k == 0:
                scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    Correct:
        for x, y in window:
            scaler.scale(criterion(model(x), y) / len(window)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    Reported: pytorch/pytorch/pull/36601, conservationtechlab/animl-py/issues/298
    """
    if history.refused and history.failed:
        where, text = history.refused
        fix = "per window, call unscale_(), step() and update() once each; update() also where step() is skipped"
        yield finding(None, where, f"the scaler refused a call, which ended the script: {text}", fix=fix)
    for ledger in history.stepped:
        for update in ledger.updates:
            early = [k for k in update.unscaled_after if any(call.scaled != 1 for call in update.fresh[k:])]
            if early:
                n = len(update.fresh)
                text = f"unscale_() came after backward call {early[0]} of a window of {n}: what follows is scaled "
                text += "again"
                yield finding(ledger, update.where, text, [update], unscaled_after=early, window=n)
                break
        early = next((update for update in ledger.updates if update.updated_after), None)
        if early is not None:
            (after, where), n = early.updated_after[0], len(early.fresh)
            text = f"the scaler was updated after backward call {after} of a window of {n}, before the step"
            yield finding(ledger, where, text, [early], updated_after=after, window=n)
        firsts = {update.scaler: update for update in reversed(ledger.updates) if update.scaler}
        if len(firsts) > 1:
            text = f"{len(firsts)} different scalers were used, so what they learn about the scale is lost"
            skipped = sum(update.skipped for update in firsts.values())
            text += f": {count_noun(skipped, 'update')} were skipped until a new one had learned it" * (skipped > 1)
            level = ERROR if skipped > 1 else ADVICE
            yield finding(ledger, ledger.updates[-1].where, text, level=level, scalers=len(firsts), skipped=skipped)
