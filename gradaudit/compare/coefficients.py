"""How much each loss of a window counts, and each sample or token in it."""

from collections.abc import Iterator
from itertools import chain, islice
from math import isclose

from gradaudit.compare.columns import Column, columns_of, divides, nearly_equal
from gradaudit.compare.rules import ERROR, UNDECIDED, Difference, rule
from gradaudit.history import AuditedLedger, AuditedUpdate, History, count_noun
from gradaudit.lines import division_of, loss_of

_SHOWN = 6  # numbers of a list


@rule("loss-scale")
def scale(history: History) -> Iterator[Difference]:
    """Windows whose losses don't add up to one mean; of each optimizer the first difference.

    Symptom: The gradient's norm, and the best learning rate, depend on N.
    Cause: Gradients of a window are summed, so means that nobody divides add up to N times the mean; a division by a
        fixed N is wrong for a short window.
    Fix: Divide each mean by its window's micro-batches, or weight it by its tokens.
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
        columns = columns_of(full[0]) if n >= 2 and full else None
        if columns and columns[0].reduction == "unknown" and not isclose(columns[0].share, 1.0, rel_tol=1e-3):
            text = "no loss was found that PyTorch's own functions reduce, so nothing is said about its scale"
            yield Difference("unknown", ledger, full[0].fresh[0].where, text, full, level=UNDECIDED, window=n)
        elif columns and columns[0].reduction != "unknown":
            found = [_of_a_loss(ledger, full, columns, k) for k in range(len(columns))]
            yield from islice(chain(filter(None, found), _tails(ledger, n, updates, columns)), 1)


def _of_a_loss(ledger: AuditedLedger, full: list[AuditedUpdate], columns: list[Column], k: int) -> Difference | None:
    """How one loss of the full windows is scaled, if not by their size."""
    column, first, n = columns[k], full[0], full[0].size
    # ranks that share a mean look buggy in one window by chance
    alike = [each[k] for each in map(columns_of, full) if each and len(each) > k] if first.on_ranks else [column]
    alone = len(columns) == 1 and len(first.fresh) == n  # of several losses, each may have a weight
    level = ERROR
    if column.reduction == "sum":
        return None
    if all(isclose(c, 1, rel_tol=1e-3) for each in alike for c in each.coefficients):
        kind, where, fix = "undivided", loss_of(first.fresh[0].where), None
        text = f"the mean loss of each of {count_noun(n, 'micro-batch')} counts in full"
        text += f", so every update is {n} times too large"
    elif alone and all(isclose(each.share * n, 1, rel_tol=1e-3) for each in alike):
        kind, where, fix = "twice", division_of(first.fresh[0].where), "divide once"
        text = f"the loss is divided by {n} twice, so every update is {n} times too small"
    elif first.on_ranks and not nearly_equal([each.share for each in alike]):
        kind, where, fix, level = "over ranks", first.fresh[0].where, "", UNDECIDED
        shares = ", ".join(f"{each.share:.3g}" for each in alike[:_SHOWN])
        text = f"the coefficients of a window add up to {shares} on this rank; whether they add up to one mean over "
        text += "all ranks cannot be seen from here"
    else:
        return None
    numbers = {"window": n, "factor": column.share, "coefficients": column.coefficients[:8], "loss": column.name}
    return Difference(kind, ledger, where, text, full, about=column, fix=fix, level=level, **numbers)


def _tails(ledger: AuditedLedger, n: int, updates: list[AuditedUpdate], full: list[Column]) -> Iterator[Difference]:
    """A short window whose loss is divided by n. `full` holds the losses of a full window."""
    if full[0].coefficients[0] >= 1 and not all(divides(n, term) for term in full[0].terms):  # sums over samples do so
        return
    late = updates[0].size < n  # a first window that is short is no tail, and later ones may be short because of it
    ends = {update: ends_an_epoch(update, updates) for update in updates[late:] if update.size < n}
    for update in sorted(ends, key=ends.get, reverse=True):  # what is certain before what may be meant
        tail = columns_of(update)
        if tail is None or len(tail) != len(full) or not tail[0].reduction == full[0].reduction == "mean":
            continue
        ratio = tail[0].share / full[0].share
        if not isclose(ratio, 1.0, rel_tol=1e-2) and isclose(ratio, update.size / n, rel_tol=1e-2):
            text = f"a short window of {count_noun(update.size, 'micro-batch')} is divided by {n}, so its update is "
            text += f"{ratio:.2f} of its mean gradient"
            where, fix = division_of(update.fresh[0].where), "divide by what the window holds"
            numbers = {"short_window": update.size, "factor": ratio, "window": n}
            yield Difference("tail", ledger, where, text, [update], about=updates, fix=fix, **numbers)


def ends_an_epoch(update: AuditedUpdate, updates: list[AuditedUpdate]) -> bool:
    """Do the data end with it? Where no epochs are seen, other windows are as short, or it is the last."""
    place = updates.index(update)
    if place + 1 == len(updates):
        return True
    epochs = update.fresh[-1].epoch, updates[place + 1].fresh[0].epoch
    return epochs[0] != epochs[1] if None not in epochs else sum(each.size == update.size for each in updates) > 1


# Samples and tokens


@rule("token-weights")
def weights(history: History) -> Iterator[Difference]:
    """Micro-batches of unequal counts whose means count alike.

    Symptom: Losses agree, gradients do not; short sequences count more.
    Cause: Each micro-batch takes the mean over its own targets, so a target in a short micro-batch gets more weight
        than one in a long micro-batch.
    Fix: Multiply each mean by its tokens over those of the window.
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
        updates = [update for update in ledger.filled if update.size >= 2 and not update.skipped]
        uneven = [
            (update, column, columns)
            for update in updates
            for columns in [columns_of(update) or []]
            for column in columns
            if column.uneven and column.reduction != "sum" and nearly_equal(column.coefficients)
        ]
        if uneven:
            yield _means_of_means(ledger, updates, uneven)


def _means_of_means(ledger: AuditedLedger, updates: list[AuditedUpdate], uneven: list[tuple]) -> Difference:
    """The most unequal window is the evidence."""
    worst = [each for each in uneven if not is_by_choice(*each[1:])] or uneven
    update, column, _ = max(worst, key=lambda each: _spread(each[1]))
    weights = [term.per_item * sum(column.counts) / column.share for term in column.terms]
    text = f"micro-batches of {_listed(column.counts)} samples or tokens count alike, which is "
    text += f"{_listed(weights, '.2g')} times what they should"
    where, numbers = division_of(update.fresh[0].where), {"counts": column.counts[:8], "weights": weights[:8]}
    return Difference("uneven", ledger, where, text, [update], about=(uneven, updates), windows=len(worst), **numbers)


def _listed(numbers: list[float], form: str = "g") -> str:
    return ", ".join(format(number, form) for number in numbers[:_SHOWN])


def is_by_choice(column: Column, columns: list[Column]) -> bool:
    """Do the items of another loss beside it count alike? Then it may be a mean by choice, as classes have weights."""
    return any(each.items_count_alike for each in columns) or any(term.by_class for term in column.terms)


def _spread(column: Column) -> float:
    weights = [term.per_item for term in column.terms]
    return max(weights) / min(weights)
