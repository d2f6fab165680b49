"""How much each loss of a window counts."""

import re
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from math import inf, isclose, isfinite, prod

from gradaudit.callsite import source
from gradaudit.columns import Column, columns_of, divides, nearly_equal
from gradaudit.history import AuditedLedger, AuditedUpdate, History, count_noun
from gradaudit.lines import division_of, loss_of
from gradaudit.rules.rule import (
    CHANGED,
    ERROR,
    UNDECIDED,
    Finding,
    by_framework,
    finding,
    rule,
    windows_of_several,
)

_SHOWN = 6  # numbers of a list
_ACCUMULATED = re.compile(r"accum|grad(ient)?_?acc", re.I)
COUNT_TOKENS = (
    "let forward() take **kwargs, and divide the sum over tokens by num_items_in_batch, which the Trainer then passes "
    "to it and to compute_loss()"
)
_PASS_N = "pass Accelerator(gradient_accumulation_steps={}): accelerator.backward() then divides"
_SCALE_THE_LAST = (
    "multiply the losses of the last window by {} / its micro-batches, since {} divides by {}; or drop what is left of "
    "the data"
)
_NOT_DIVIDED = (
    "the Trainer divides neither for a model whose forward() takes **kwargs nor for compute_loss_func: divide the sum "
    "over tokens by num_items_in_batch; or, for the former, set model.accepts_loss_kwargs = False before the Trainer "
    "is created"
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
            yield from islice(chain(found, _tails(history, ledger, n, updates, full)), 1)
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
    if column.reduction == "sum":
        return None
    # ranks that share a mean look buggy in one window by chance
    alike = [each[k] for each in map(columns_of, full) if each and len(each) > k] if first.on_ranks else [column]
    where, shares = first.fresh[0].where, [each.share for each in alike]
    found = partial(finding, ledger, shown_in=full, window=n, factor=column.share, loss=column.name)
    weighted = first.factor not in (1, None) or any(term.times for term in column.terms)
    if not weighted and all(isclose(c, 1, rel_tol=1e-3) for each in alike for c in each.coefficients):
        text = f"the mean loss of each of {count_noun(n, 'micro-batch')} counts in full"
        text += f", so every update is {n} times too large"
        fix = by_framework(history, ledger, where, accelerate=_PASS_N.format(n), transformers=_NOT_DIVIDED)
        return found(loss_of(where), text, reasons=[*_why_scaled(ledger, full), *why_added_up(full)], fix=fix)
    if len(columns) == 1 and len(first.fresh) == n and all(isclose(share * n, 1, rel_tol=1e-3) for share in shares):
        twice = any(divides(n, term) for term in column.terms)
        text = f"the loss is divided by {f'{n} twice' if twice else n * n}, so every update is {n} times too small"
        reasons = ["the factor may be a weight"] * any(term.times for term in column.terms)
        fix = by_framework(history, ledger, where, transformers=_DIVIDES) or ("divide once" if twice else None)
        return found(division_of(where), text, reasons=[*_why_scaled(ledger, full), *reasons], fix=fix)
    if column.uneven and not nearly_equal(column.coefficients) and not weighted:
        shown = ", ".join(f"{each:.2g}" for each in column.coefficients[:_SHOWN])
        text = f"the micro-batches of a window don't count alike: their losses have the factors {shown}"
        return found(division_of(where), text, reasons=list(_why_scaled(ledger, full)), fix="divide all of them alike")
    if first.on_ranks and not nearly_equal(shares):
        text = f"the coefficients of a window add up to {', '.join(f'{share:.3g}' for share in shares[:_SHOWN])} on "
        text += "this rank; whether they add up to one mean over all ranks cannot be seen from here"
        return found(where, text, level=UNDECIDED, fix="")
    factor = _factor_alone(column, n)
    if factor is not None and not first.on_ranks and not any(why_added_up(full)):
        text = f"each of {count_noun(n, 'micro-batch')} has a loss with the factor {factor:g} and no division by {n}: "
        text += f"the coefficients of a window add up to {column.share:g}, where {factor:g} may be meant"
        return found(loss_of(where), text, level=UNDECIDED, fix="")
    return None


def _factor_alone(column: Column, n: int) -> float | None:
    """What a loss is multiplied by, if that alone makes its coefficients, and nothing divides by the window's size."""
    factor = prod(column.terms[0].times) / (prod(column.terms[0].over) or inf)
    alone = factor > 0 and all(isclose(c, factor, rel_tol=1e-3) for c in column.coefficients)
    usual = isclose(factor, 1, rel_tol=1e-3) or any(divides(n, term) for term in column.terms)
    return factor if alone and not usual and not isclose(factor * n, 1, rel_tol=1e-3) else None


def _tails(
    history: History, ledger: AuditedLedger, n: int, updates: list[AuditedUpdate], full: list[AuditedUpdate]
) -> Iterator[Finding]:
    """A short window whose losses are divided by n, as those of the first full window that has the same ones."""
    usual = {_names(columns): columns for columns in map(columns_of, reversed(full)) if columns}
    late = updates[0].size < n  # a first window that is short is no tail, and later ones may be short because of it
    for update in [update for update in updates[late:] if update.size < n and ends_an_epoch(update, updates)]:
        tail = columns_of(update)
        whole = usual.get(_names(tail or []))
        if whole and whole[0].reduction == "mean" and all(divides(n, term) for term in whole[0].terms):
            ratio = tail[0].share / whole[0].share
            if isclose(ratio, update.size / n, rel_tol=1e-2):
                text = f"a short window of {count_noun(update.size, 'micro-batch')} is divided by {n}, so its update "
                text += f"is {ratio:.2f} of its mean gradient"
                reasons = [*_why_scaled(ledger, [update]), *["the first window is short as well"] * late]
                where = division_of(update.fresh[0].where)
                told = f"{COUNT_TOKENS}: it counts what a window really holds"
                own = {name: _SCALE_THE_LAST.format(n, name.title(), n) for name in ("accelerate", "lightning")}
                fix = by_framework(history, ledger, where, transformers=told, **own)
                each = "each of its losses " * (len(tail) > 1)
                fix = fix or f"divide {each}by what the window holds"
                yield finding(ledger, where, text, [update], reasons, fix=fix, factor=ratio, window=n)


def _names(columns: list[Column]) -> tuple[tuple[str, str], ...]:
    return tuple((column.name, column.reduction) for column in columns)


def ends_an_epoch(update: AuditedUpdate, updates: list[AuditedUpdate]) -> bool:
    """Whether the data end with it. Where no epochs are seen: if other windows are as short, or it is the last."""
    index = updates.index(update)
    if index + 1 == len(updates):
        return True
    epochs = update.fresh[-1].epoch, updates[index + 1].fresh[0].epoch
    return epochs[0] != epochs[1] if None not in epochs else sum(each.size == update.size for each in updates) > 1


def _why_scaled(ledger: AuditedLedger, updates: list[AuditedUpdate]) -> Iterator[str]:
    """Why the gradient may be scaled in another way."""
    if updates[0].factor is None:
        yield CHANGED
    if ledger.hooked:
        yield "gradients go through hooks of the script, which may change them"
    if ledger.by_itself:
        yield "the update by hand may divide"


def why_added_up(full: list[AuditedUpdate]) -> Iterator[str]:
    """Why the losses of a window may be meant to be added up, as those of several tasks are."""
    calls, because = full[0].micro_batches, "a sum may be meant: "
    if any(call.graphs > 1 for call in calls):
        yield f"{because}one backward call takes the losses of a window along"
    if len({call.reach.get(full[0].ledger) for call in calls}) > 1:
        yield f"{because}the window's backward calls reach different parameters, as those of several tasks do"
    if all(term.is_label for call in calls for term in call.terms):
        yield f"{because}all targets of each are one label, such as real or fake"
    if any(call.passes > 1 for call in calls):
        yield f"{because}each goes back through the one before, as the steps of a sequence do"
