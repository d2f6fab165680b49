"""How much each sample or token of a window counts."""

from collections.abc import Iterator
from itertools import pairwise

from gradaudit.columns import Column, columns_of, nearly_equal
from gradaudit.history import AuditedLedger, AuditedUpdate, History
from gradaudit.lines import division_of
from gradaudit.rules.loss_scale import COUNT_TOKENS, why_added_up
from gradaudit.rules.rule import ADVICE, ERROR, Finding, by_framework, finding, rule

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


def _means_of_means(
    history: History, ledger: AuditedLedger, updates: list[AuditedUpdate], uneven: list[tuple]
) -> Finding:
    """The most unequal window is the evidence."""
    update, column = max(uneven, key=lambda each: _spread(each[1]))
    weights = [term.per_item * sum(column.counts) / column.share for term in column.terms]
    text = f"micro-batches of {_listed(column.counts)} samples or tokens count alike, which is "
    text += f"{_listed(weights, '.2g')} times what they should"
    level, reasons = ERROR, list(why_added_up([u for u in updates if u.size == len(column.terms)]))
    if any(term.by_class for _, column in uneven for term in column.terms):
        level, reasons = ADVICE, ["classes have weights, so a mean of means may be chosen"]
    elif any(other.items_count_alike for update, _ in uneven for other in columns_of(update)):
        level, reasons = ADVICE, ["another loss beside it counts by its items, so a mean of means may be chosen"]
    elif _data_set_ends(uneven, updates):
        level, reasons = ADVICE, ["only the last batch of a data set is short"]
    where, numbers = division_of(update.fresh[0].where), {"counts": column.counts[:8], "weights": weights[:8]}
    fix = by_framework(history, ledger, where, transformers=f"{COUNT_TOKENS}: it is the count of the whole window")
    return finding(ledger, where, text, [update], reasons, level=level, fix=fix, windows=len(uneven), **numbers)


def _listed(numbers: list[float], form: str = "g") -> str:
    return ", ".join([*(format(number, form) for number in numbers[:_SHOWN]), *["..."] * (len(numbers) > _SHOWN)])


def _spread(column: Column) -> float:
    weights = [term.per_item for term in column.terms]
    return max(weights) / min(weights)


def _data_set_ends(uneven: list[tuple], updates: list[AuditedUpdate]) -> bool:
    """Whether only the last batch of a data set is short, which comes once in an epoch, or every so often."""
    ends = []  # the epoch of the shortest micro-batch of each window
    for update, column in uneven:
        calls = [call for call in update.micro_batches for _ in call.parts]
        ends.append(calls[column.counts.index(min(column.counts))].epoch)
    if any(end is not None and end == after for end, after in pairwise(ends)):
        return False  # a batch of a DataLoader may be cut into uneven parts
    return _only_the_last_is_short([column.counts for _, column in uneven], uneven[0][1].name, updates)


def _only_the_last_is_short(uneven: list[list[float]], name: str, updates: list[AuditedUpdate]) -> bool:
    """In some windows the last micro-batch is short, and all others are of one size; or one comes every so often."""
    columns = [next((c for c in columns_of(u) or [] if c.name == name), None) for u in updates]
    counts = [column.counts if column else [] for column in columns]
    sizes = {count for each in uneven for count in each[:-1]}
    full = any(each and {*each} | sizes == sizes for each in counts)
    last = len(sizes) == 1 and all(each[-1] < each[0] for each in uneven) and (full or len(uneven) > 2)
    return last or _comes_again([count for each in counts for count in each])


def _comes_again(counts: list[float | None]) -> bool:
    """As where a window goes on over the end of a data set: every so many full micro-batches, one is short."""
    if None in counts:
        return False
    short = [k for k, count in enumerate(counts) if count < max(counts)]
    between = {after - before for before, after in pairwise(short)} or set(short)  # only once, after so many
    return len({counts[k] for k in short}) == len(between) == 1 and min(between) > 2
