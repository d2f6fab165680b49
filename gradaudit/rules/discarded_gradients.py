"""Gradients that are never used."""

from collections.abc import Iterable, Iterator
from math import isfinite

from gradaudit.history import AuditedCall, AuditedLedger, History, count_noun
from gradaudit.observe.ledger import Zeroing
from gradaudit.rules.rule import ADVICE, ERROR, Finding, by_framework, finding, rule

_OVERWRITTEN = "zero with set_to_none=False, and fill .grad with zeros before the first window, so it keeps its memory"
_PREPARE = (
    "pass the optimizer through accelerator.prepare(): its step() and zero_grad(), in this order, inside "
    "accelerator.accumulate() then wait for the end of the window"
)
_PREPARED = (
    "call zero_grad() after step(): inside accelerator.accumulate(), a prepared optimizer zeroes only in the last "
    "micro-batch of a window, and before its backward that drops all the others"
)
DROPPED_WHOLE = "whole windows were dropped without a step, which may be intended"


@rule("discarded-gradients", lambda history: history.calls, "no backward call was seen")
def discarded(history: History) -> Iterator[Finding]:
    """Gradients that were zeroed, written over, or lost to one that is no number, before any step used them.

    Symptom: Learns slowly or not at all, and N makes no difference.
    Cause: zero_grad() runs between a backward and the step that should use its gradient, as at the start of every
        micro-batch. Or each backward writes to the same memory, as in a CUDA graph, and .grad lies there too. Or one
        micro-batch brings nan, which stays nan whatever is added.
    Fix: Zero after the step, and nowhere inside a window.
    Known problems: Gradients that are only read, as for a norm or an attack, and then zeroed are undecided where their
        line leads to no step.
    Wrong:
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            (criterion(model(x), y) / n).backward()
            if (i + 1) % n == 0:
                optimizer.step()
    Correct:
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y) / n).backward()
            if (i + 1) % n == 0:
                optimizer.step()
                optimizer.zero_grad()
    Reported: bytetriper/RAE/issues/67, ultralytics/ultralytics/pull/11217, pytorch/pytorch/issues/181723
    """
    for ledger in history.ledgers:
        calls = history.calls_of(ledger)
        over = next((call for call in calls if call.overwritten), None)
        if over is not None:
            text = f"backward call {over.number} wrote the gradients of {count_noun(over.overwritten, 'parameter')} "
            text += "over what was in .grad, as a CUDA graph does, before it was added"
            yield finding(ledger, over.where, text, fix=_OVERWRITTEN, overwritten=over.overwritten)
        right = {zeroing for zeroing in ledger.lost if not _counts(history, ledger, zeroing)}
        pairs = [(zeroing, call) for zeroing, call in ledger.lost_calls if zeroing not in right and _is_finite(call)]
        if pairs:
            lost, where = [call for _, call in pairs], pairs[0][0].where
            text = f"the gradients of {len(lost)} of {count_noun(len(calls), 'backward call')} were zeroed before any "
            reasons, fix = _reasons(history, ledger, pairs), _fix(history, ledger, where)
            yield finding(ledger, where, f"{text}step used them", reasons=reasons, fix=fix, discarded=len(lost))
        yield from _not_finite(ledger)


def _counts(history: History, ledger: AuditedLedger, zeroing: Zeroing) -> bool:
    """Whether it isn't a failed script's cleaning up at its end, nor of zeros, nor of a whole window with a nan."""
    cleaned_up = history.failed and zeroing.after == ledger.made and zeroing is ledger.lost[-1]
    spoiled = not all(map(_is_finite, zeroing.calls)) and whole_windows(ledger, [zeroing.calls])
    return not (cleaned_up or zeroing.were_zeros or spoiled)


def _is_finite(call: AuditedCall) -> bool:
    return call.value is None or isfinite(call.value)


def _reasons(history: History, ledger: AuditedLedger, pairs: list[tuple]) -> Iterator[str]:
    useful = useful_sites(history, ledger)
    if useful and not any(call.site in useful for _, call in pairs):
        yield "no step ever uses a call from there, which may be intended"
    if useful and whole_windows(ledger, by_zeroing(pairs)):
        yield DROPPED_WHOLE
    used = {call.forward for call in history.calls if ledger in call.users}
    if used.issuperset(call.forward for _, call in pairs):
        yield "another call through the same forward pass reached a step"


def _fix(history: History, ledger: AuditedLedger, where: str) -> str | None:
    if not history.by_framework:  # the script counts its windows by itself
        return None
    if getattr(where, "framework", "") == "accelerate":  # which zeroes for the script
        return _PREPARED
    if any(getattr(update.where, "framework", "") for update in ledger.updates):
        return None
    return by_framework(history, ledger, where, accelerate=_PREPARE)


def _not_finite(ledger: AuditedLedger) -> Iterator[Finding]:
    """A micro-batch whose loss was no number, and the first update that was made with it."""
    for update in ledger.filled:
        bad = [call for call in update.fresh if not _is_finite(call)]
        if bad and not update.skipped:
            many = len(update.fresh) - len(bad)
            text = f"backward call {bad[0].number} went back from a loss of {float(bad[0].value):g}, and update "
            text += f"{update.number} was made with its gradient"
            text += f": {count_noun(many, 'other micro-batch')} of the window are lost with it" * bool(many)
            text += ", and the weights are no numbers any more" * ledger.is_nan
            level, fix = ERROR if ledger.is_nan else ADVICE, "skip the update of a window whose gradient isn't finite"
            yield finding(ledger, bad[0].where, text, [update], level=level, fix=fix, backward_call=bad[0].number)
            return


# What other rules ask of calls that no step has used


def useful_sites(history: History, ledger: AuditedLedger) -> set[tuple]:
    """Call sites whose gradients reached a step of this ledger, or an unknown use."""
    return {call.site for call in history.calls if call.used and (ledger in call.users or not call.used_by)}


def by_zeroing(pairs: Iterable[tuple[Zeroing, AuditedCall]]) -> list[list[AuditedCall]]:
    dropped: dict[Zeroing, list] = {}
    for zeroing, call in pairs:
        dropped.setdefault(zeroing, []).append(call)
    return list(dropped.values())


def whole_windows(ledger: AuditedLedger, dropped: list[list]) -> bool:
    """Whether sometimes as many calls were dropped as the windows right before and after hold."""
    for calls in dropped:
        nearby = [update.size for update in ledger.filled if update.fresh[-1].number < calls[0].number][-1:]
        nearby += [update.size for update in ledger.filled if update.fresh[0].number > calls[0].number][:1]
        if len(calls) != max(nearby, default=0):
            return False
    return len(dropped) < len(ledger.filled)
