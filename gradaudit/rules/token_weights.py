"""How much each sample or token of a window counts."""

from collections.abc import Iterator
from math import isclose

from gradaudit.columns import Column, columns_of, nearly_equal
from gradaudit.history import AuditedLedger, AuditedUpdate, History
from gradaudit.lines import division_of
from gradaudit.rules.loss_scale import COUNT_TOKENS, why_added_up
from gradaudit.rules.rule import ADVICE, ERROR, UNDECIDED, Finding, by_framework, finding, rule

_SHOWN = 6  # numbers of a list


def _with_counts(history: History) -> bool:
    return any(None not in column.counts for update in history.updates for column in columns_of(update) or [])


@rule("token-weights", _with_counts, "no loss was seen whose samples or tokens can be counted")
def weights(history: History) -> Iterator[Finding]:
    """Micro-batches of unequal counts whose means count alike.

    Symptom: Losses agree, gradients do not; short sequences count more.
    Cause: Each micro-batch takes the mean over its own targets, so a target in a short micro-batch gets more weight
        than one in a long micro-batch.
    Fix: Multiply each mean by its tokens over those of the window.
    Known problems: One rank doesn't see how many tokens the others hold.
    Wrong:
        for x, y in window:
            (criterion(model(x), y) / len(window)).backward()
    Correct:
        total = sum((y != ignore_index).sum() for x, y in window)
        for x, y in window:
            share = (y != ignore_index).sum() / total
            (criterion(model(x), y) * share).backward()
    Reported: huggingface/trl/issues/2175, allenai/open-instruct/pull/1161
    """
    for ledger in history.stepped:
        updates = [update for update in ledger.filled if not update.skipped]
        several = [update for update in updates if update.size >= 2]
        uneven = [
            (update, column)
            for update in several
            for column in columns_of(update) or []
            if column.uneven and column.reduction != "sum" and nearly_equal(column.coefficients)
        ]
        if uneven:
            yield _means_of_means(history, ledger, several, uneven)
        elif alone := [u for u in updates if u.on_ranks and any(map(_one_mean_of_this_rank, columns_of(u) or []))]:
            counts = next(column.counts for column in columns_of(alone[0]) if _one_mean_of_this_rank(column))
            text = f"the {sum(counts):g} tokens of a window share one mean on this rank, and the ranks' means count "
            text += "alike: right only if each rank holds as many tokens, which cannot be seen from here"
            yield finding(ledger, division_of(alone[0].fresh[0].where), text, alone, level=UNDECIDED, fix="")


def _one_mean_of_this_rank(column: Column) -> bool:
    """Whether all tokens of this rank's window, of which some are left out, have weights that add up to 1."""
    masked = None not in column.counts and any(term.masked for term in column.terms)
    return masked and column.items_count_alike and isclose(column.weight, 1, rel_tol=1e-3)


def _means_of_means(
    history: History, ledger: AuditedLedger, updates: list[AuditedUpdate], uneven: list[tuple]
) -> Finding:
    """The most unequal window is the evidence."""
    update, column = max(uneven, key=lambda each: _spread(each[1]))
    weights = [term.per_item * sum(column.counts) / column.share for term in column.terms]
    by_count = sorted(zip(column.counts, weights, strict=True))
    (few, much), (many, little) = by_count[0], by_count[-1]
    text = f"micro-batches of {_listed(column.counts)} samples or tokens count alike, so each of the {few:g} counts "
    text += f"{much:.2g} times what it should, and each of the {many:g} {little:.2g} times"
    level, reasons = ERROR, list(why_added_up([u for u in updates if u.size == len(column.terms)]))
    if any(term.by_class for _, column in uneven for term in column.terms):
        level, reasons = ADVICE, ["classes have weights, so a mean of means may be chosen"]
    elif any(other.items_count_alike for update, _ in uneven for other in columns_of(update)):
        level, reasons = ADVICE, ["another loss beside it counts by its items, so a mean of means may be chosen"]
    elif _a_data_set_ends(uneven, len(updates)):
        level, reasons = ADVICE, ["only the last batch of a data set is short"]
    where = division_of(update.fresh[0].where)
    fix = by_framework(history, ledger, where, transformers=f"{COUNT_TOKENS}: it is the count of the whole window")
    return finding(ledger, where, text, [update], reasons, level=level, fix=fix, windows=len(uneven))


def _listed(numbers: list[float]) -> str:
    return ", ".join([*(f"{number:g}" for number in numbers[:_SHOWN]), *["..."] * (len(numbers) > _SHOWN)])


def _spread(column: Column) -> float:
    weights = [term.per_item for term in column.terms]
    return max(weights) / min(weights)


def _a_data_set_ends(uneven: list[tuple], windows: int) -> bool:
    """Whether the last batch of a data set is short, which comes once in an epoch, or not in all windows."""
    alone = all(sum(count < max(column.counts) for count in column.counts) == 1 for _, column in uneven)
    short = [(update.micro_batches, column.counts.index(min(column.counts))) for update, column in uneven]
    epochs = [calls[min(place, len(calls) - 1)].epoch for calls, place in short]  # one call may take all along
    return alone and (len(uneven) < windows if None in epochs else len({*epochs}) == len(epochs))
