"""How much each loss of a window counts."""

import re
from collections.abc import Iterator
from itertools import chain, islice
from math import inf, isclose, isfinite, prod

from gradaudit.callsite import source
from gradaudit.columns import Column, columns_of, divides, nearly_equal
from gradaudit.history import AuditedCall, AuditedLedger, AuditedUpdate, History, count_noun
from gradaudit.lines import division_of, go_over_something, loss_of
from gradaudit.rules.irregular_window import of_any_length
from gradaudit.rules.rule import (
    CHANGED,
    ERROR,
    OWN_STEP,
    UNDECIDED,
    Finding,
    by_framework,
    finding,
    rule,
    windows_of_several,
)

_SHOWN = 6  # numbers of a list
_ACCUMULATED = re.compile(r"accum|grad(ient)?_?acc", re.I)
_LOOKED_AT = 3  # windows whose calls are asked about
COUNT_TOKENS = (
    "divide the sum over tokens by num_items_in_batch, which the Trainer passes to forward() or compute_loss()"
)
_PASS_N = "pass Accelerator(gradient_accumulation_steps={}): accelerator.backward() then divides"
_NOT_DIVIDED = (
    "the Trainer doesn't divide for a model whose forward() takes **kwargs: use num_items_in_batch in its loss, or set "
    "model.accepts_loss_kwargs = False"
)
_DIVIDES = (
    "the Trainer divides by gradient_accumulation_steps itself: return the plain mean from forward() or compute_loss()"
)


def _losses_of_several(history: History) -> bool:
    return any(map(columns_of, windows_of_several(history)))


@rule("loss-scale", _losses_of_several, "no window of several losses was seen")
def scale(history: History) -> Iterator[Finding]:
    """Windows whose losses don't add up to one mean; of each optimizer the first difference.

    Symptom: The gradient's norm, and the best learning rate, depend on N.
    Cause: Gradients of a window are summed, so means that nobody divides add up to N times the mean; a division by a
        fixed N is wrong for a short window.
    Fix: Divide each mean by its window's micro-batches, or weight it by its tokens.
    Known problems: Only losses that PyTorch's own functions reduce are followed, and a sum that is divided by nothing
        is taken as meant.
    Wrong:
        for x, y in window:
            criterion(model(x), y).backward()
        optimizer.step()
    Correct:
        for x, y in window:
            (criterion(model(x), y) / len(window)).backward()
        optimizer.step()
    Reported: karpathy/nanoGPT/issues/168, Lightning-AI/pytorch-lightning/issues/19987
    """
    for ledger in history.stepped:
        updates = [update for update in ledger.filled if not update.skipped]
        n = history.size(ledger)
        full = [update for update in updates if update.size == n]
        full = [update for update in full if update.factor is not None] or full
        columns = columns_of(full[0]) if n >= 2 and full else None
        if columns and columns[0].reduction == "unknown" and not isclose(columns[0].share, 1.0, rel_tol=1e-3):
            text = "no loss was found that PyTorch's own functions reduce, so nothing is said about its scale"
            yield finding(ledger, full[0].fresh[0].where, text, full, level=UNDECIDED, window=n)
        elif columns and columns[0].reduction != "unknown":
            found = [_of_a_loss(history, ledger, full, columns, k) for k in range(len(columns))]
            found = sorted(filter(None, found), key=lambda each: each.level != ERROR)
            yield from islice(chain(found, _tails(history, ledger, n, updates, columns)), 1)
        elif n == 1:
            yield from _divided_alone(history, ledger, updates)


def _divided_alone(history: History, ledger: AuditedLedger, updates: list[AuditedUpdate]) -> Iterator[Finding]:
    """Updates from one micro-batch each, whose loss is divided as if there were several."""
    divided = [update for update in updates if update.size == 1 and _divisor(update)]
    if not divided:
        return
    where, inside, divisor = division_of(divided[0].fresh[0].where), divided[0].inside, _divisor(divided[0])
    if inside or _ACCUMULATED.search(source(where)):
        text = f"each update holds one micro-batch, whose loss is divided by {divisor:g}, so it is "
        text += f"{divisor:g} times too small" + ": each step is made inside its backward call" * inside
        reasons = [*_why_scaled(ledger, divided), "the division may be no accumulation's"]
        yield finding(ledger, where, text, divided, reasons, divisor=divisor)


def _divisor(update: AuditedUpdate) -> float | None:
    """The whole number above 1 by which alone a mean loss of a window of one was divided; None if there is none."""
    terms = [column.terms[0] for column in columns_of(update) or [] if column.reduction == "mean"]
    whole = [d for term in terms for d in term.over if isfinite(d) and d > 1 and d == round(d)]
    return next((d for d in whole for term in terms if isclose(term.coefficient * d, 1, rel_tol=1e-3)), None)


def _of_a_loss(
    history: History, ledger: AuditedLedger, full: list[AuditedUpdate], columns: list[Column], k: int
) -> Finding | None:
    """How one loss of the full windows is scaled, if not by their size."""
    column, first, n = columns[k], full[0], full[0].size
    # ranks that share a mean look buggy in one window by chance
    alike = [each[k] for each in map(columns_of, full) if each and len(each) > k] if first.on_ranks else [column]
    where = first.fresh[0].where
    numbers = {"window": n, "factor": column.share, "coefficients": column.coefficients[:8], "loss": column.name}
    if column.reduction == "sum":
        return None
    reasons = list(_why_scaled(ledger, full))
    # a weight may cancel a division
    weighted = first.factor not in (1, None) or any(term.times for term in column.terms)
    if not weighted and all(isclose(c, 1, rel_tol=1e-3) for each in alike for c in each.coefficients):
        text = f"the mean loss of each of {count_noun(n, 'micro-batch')} counts in full"
        text += f", so every update is {n} times too large"
        fix = by_framework(history, ledger, where, accelerate=_PASS_N.format(n), transformers=_NOT_DIVIDED)
        reasons += why_added_up(full)
        return finding(ledger, loss_of(where), text, full, reasons, fix=fix, **numbers)
    if len(columns) == 1 and len(first.fresh) == n and all(isclose(each.share * n, 1, rel_tol=1e-3) for each in alike):
        text = f"the loss is divided by {n} twice, so every update is {n} times too small"
        if (n == 2 and not column.name.startswith("NllLoss")) or any(term.times for term in column.terms):
            reasons.append("it may have a weight, or be halved as squares and the losses of a critic are")
        fix = by_framework(history, ledger, where, transformers=_DIVIDES) or "divide once"
        return finding(ledger, division_of(where), text, full, reasons, fix=fix, **numbers)
    if first.on_ranks and not nearly_equal([each.share for each in alike]):
        shares = ", ".join(f"{each.share:.3g}" for each in alike[:_SHOWN])
        text = f"the coefficients of a window add up to {shares} on this rank; whether they add up to one mean over "
        text += "all ranks cannot be seen from here"
        return finding(ledger, where, text, full, level=UNDECIDED, fix="", **numbers)
    factors = {_factor_alone(each[k], n) for each in map(columns_of, full) if each and len(each) > k}
    (factor,) = factors if len(factors) == 1 and not first.on_ranks else (None,)
    if factor is not None and not reasons and not any(why_added_up(full)):
        text = f"each of {count_noun(n, 'micro-batch')} has a loss with the factor {factor:g} and no division by {n}: "
        text += f"the coefficients of a window add up to {column.share:g}, where {factor:g} may be meant"
        return finding(ledger, loss_of(where), text, full, level=UNDECIDED, fix="", **numbers)
    return None


def _factor_alone(column: Column, n: int) -> float | None:
    """What a loss is multiplied by, if that alone makes its coefficients, and nothing divides by the window's size."""
    factors = {prod(term.times) / (prod(term.over) or inf) for term in column.terms}
    (factor,) = factors if len(factors) == 1 else (0.0,)
    alone = factor > 0 and all(isclose(c, factor, rel_tol=1e-3) for c in column.coefficients)
    usual = isclose(factor, 1, rel_tol=1e-3) or any(divides(n, term) for term in column.terms)
    return factor if alone and not usual and not isclose(factor * n, 1, rel_tol=1e-3) else None


def _tails(
    history: History, ledger: AuditedLedger, n: int, updates: list[AuditedUpdate], full: list[Column]
) -> Iterator[Finding]:
    """A short window whose loss is divided by n. `full` holds the losses of a full window."""
    divided = all(divides(n, term) for term in full[0].terms)
    if not divided and (full[0].coefficients[0] >= 1 or _factor_alone(full[0], n)):  # sums over samples, and weights
        return
    late = updates[0].size < n  # a first window that is short is no tail, and later ones may be short because of it
    cut = {zeroing.after + 1 for zeroing, _ in ledger.lost_calls}  # windows of which something was zeroed
    short = [update for update in updates[late:] if update.size < n and update.number not in cut]
    ends = {update: ends_an_epoch(update, updates) for update in short}
    for update in sorted(ends, key=ends.get, reverse=True):  # what is certain before what may be meant
        tail = columns_of(update)
        if tail is None or len(tail) != len(full) or not tail[0].reduction == full[0].reduction == "mean":
            continue
        ratio = tail[0].share / full[0].share
        if not isclose(ratio, 1.0, rel_tol=1e-2) and isclose(ratio, update.size / n, rel_tol=1e-2):
            text = f"a short window of {count_noun(update.size, 'micro-batch')} is divided by {n}, so its update is "
            text += f"{ratio:.2f} of its mean gradient"
            reasons = list(_why_scaled(ledger, [update]))
            if not ends[update]:
                reasons.append("it is in the middle of an epoch, as where a micro-batch is left out")
            if late:
                reasons.append("the first window is short as well")
            where = division_of(update.fresh[0].where)
            told = f"{COUNT_TOKENS}: it counts what a window really holds"
            fix = by_framework(history, ledger, where, transformers=told) or "divide by what the window holds"
            numbers = {"short_window": update.size, "factor": ratio, "window": n}
            yield finding(ledger, where, text, [update], reasons, fix=fix, **numbers)


def ends_an_epoch(update: AuditedUpdate, updates: list[AuditedUpdate]) -> bool:
    """Whether the data end with it. Where no epochs are seen: if other windows are as short, or it is the last."""
    index = updates.index(update)
    if index + 1 == len(updates):
        return True
    epochs = update.fresh[-1].epoch, updates[index + 1].fresh[0].epoch
    return epochs[0] != epochs[1] if None not in epochs else sum(each.size == update.size for each in updates) > 1


def _why_scaled(ledger: AuditedLedger, updates: list[AuditedUpdate]) -> Iterator[str]:
    """Why the gradient may be scaled in another way."""
    if ledger.own_step:
        yield OWN_STEP
    if any(update.factor is None for update in updates[:1]):
        yield CHANGED
    if ledger.hooked:
        yield "gradients go through hooks of the script, which may change them"
    if len({call.reach.get(ledger) for call in updates[0].micro_batches}) > 1:
        yield "the window's backward calls reach different parameters, as those of several tasks do"
    if ledger.by_itself:
        yield "the update by hand may divide"


def why_added_up(full: list[AuditedUpdate]) -> Iterator[str]:
    """Why the losses of a window may be meant to be added up, as those of several tasks are."""
    calls = [update.micro_batches for update in full[:_LOOKED_AT]]
    several, because = all(len(each) > 1 for each in calls), "a sum may be meant: "
    if any(call.graphs > 1 for each in calls for call in each):
        yield f"{because}one backward call takes the losses of a window along"
    if several and all(map(_from_different_places, calls)):
        yield f"{because}a helper is called for each from a line of its own"
    if _targets_are_labels(full[:_LOOKED_AT]):
        yield f"{because}their targets are labels, such as real and fake"
    if of_any_length([u.size for u in full[0].ledger.filled if not u.skipped], full[0].size):
        yield f"{because}the windows are of any length, as episodes are"
    if go_over_something(full):
        yield "nothing says that the loop around them goes over micro-batches"
    if any(call.passes > 1 for call in calls[0]):
        yield f"{because}each goes back through the one before, as the steps of a sequence do"


def _from_different_places(calls: list[AuditedCall]) -> bool:
    alike = len({call.line for call in calls}) == len({call.synced for call in calls}) == 1
    return alike and len({call.path for call in calls}) == len(calls)


def _targets_are_labels(updates: list[AuditedUpdate]) -> bool:
    """Whether each micro-batch has only one value for a target, another in the next, and the same in all windows."""
    seen = set()
    for column in (column for update in updates for column in columns_of(update) or []):
        targets = [set(term.targets) if len(term.targets) > 1 else set() for term in column.terms]
        seen.add(tuple(next(iter(values)) if len(values) == 1 else None for values in targets))
    (labels,) = seen if len(seen) == 1 else ((),)
    return len(updates) > 1 and len(labels) > 1 and None not in labels and len(set(labels)) == len(labels)
