"""How much each loss of a window counts, and each sample or token in it."""

from collections.abc import Iterator
from itertools import chain, islice
from math import isclose

from gradaudit.compare.columns import Column, columns_of, nearly_equal
from gradaudit.compare.rules import Difference, rule
from gradaudit.history import AuditedRecord, AuditedUpdate, History, count_noun
from gradaudit.lines import division_of, loss_of
from gradaudit.source import are_written

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
    for record in history.stepped:
        updates = [update for update in record.filled if not update.skipped]
        n = history.size(record)
        full = [update for update in updates if update.size == n]
        columns = columns_of(full[0]) if n >= 2 and full else None
        if columns and columns[0].reduction != "unknown":
            found = [_of_a_loss(record, full, columns, k) for k in range(len(columns))]
            yield from islice(chain(filter(None, found), _tails(record, n, updates, columns)), 1)


def why_not_judged(history: History, record: AuditedRecord) -> str:
    """Why nothing can be said about the scale of a record's losses; "" if something can, or there is nothing to say."""
    n = history.size(record)
    full = next((update for update in record.filled if update.size == n and not update.skipped), None)
    if n < 2 or full is None:
        return ""
    columns = columns_of(full)
    if columns is None and any(call.terms for call in full.micro_batches):
        return "the micro-batches of a window have different losses"
    unknown = columns is None or columns[0].reduction == "unknown"
    right = columns is not None and any(isclose(column.share, 1.0, rel_tol=1e-3) for column in columns)
    return "no loss was found that PyTorch's own functions reduce" if unknown and not right else ""


def _of_a_loss(record: AuditedRecord, full: list[AuditedUpdate], columns: list[Column], k: int) -> Difference | None:
    """How one loss of the full windows is scaled, if not by their size."""
    column, first, n = columns[k], full[0], full[0].size
    # ranks that share a mean look buggy in one window by chance
    alike = [each[k] for each in map(columns_of, full) if each and len(each) > k] if first.on_ranks else [column]
    how, many = _how_scaled(column, columns, first, alike), count_noun(n, "micro-batch")
    if not how:
        return None
    weights = " and by ".join(f"{number:g}" for number in column.terms[0].times)
    text = {
        "in full": f"the mean loss of each of {many} counts in full",
        "averaged": f"an average of {len(columns)} losses in each of {many} counts in full",
        "weighed": f"the mean loss of each of {many} is multiplied by {weights} and divided by nothing",
        "twice": f"the loss is divided by {n} twice",
    }[how]
    kind, small, where, fix = "undivided", "large", loss_of(first.fresh[0].where), None
    if how == "twice":
        kind, small, where, fix = "twice", "small", division_of(first.fresh[0].where), "divide once"
    text += f", so every update is {n} times too {small}"
    numbers = {"window": n, "factor": column.share, "coefficients": column.coefficients[:8], "loss": column.name}
    return Difference(kind, record, where, text, full, about=column, fix=fix, **numbers)


def _how_scaled(column: Column, columns: list[Column], update: AuditedUpdate, alike: list[Column]) -> str:
    """What was done to a loss instead of one division; "" if nothing is known to be wrong."""
    n, alone = update.size, len(columns) == 1 and len(update.fresh) == update.size  # others may bring the rest
    if column.reduction == "sum":
        return "twice" if alone and not update.on_ranks and _is_a_sum_divided_twice(column, n) else ""
    if all(isclose(c, 1, rel_tol=1e-3) for each in alike for c in each.coefficients):
        return "in full"
    if alone and all(isclose(each.share * n, 1, rel_tol=1e-3) for each in alike):  # of several, each may have a weight
        return "twice"
    return "averaged" if _are_averaged(columns, n) else "weighed" if _is_only_weighed(column, columns, update) else ""


def _is_a_sum_divided_twice(column: Column, n: int) -> bool:
    """A sum that is not a mean in disguise: its numbers should count 1 / (all that the window holds)."""
    if nearly_equal([1.0, *column.coefficients]) or not column.steady:  # sums by choice
        return False
    owns = zip(*(term.own for term in column.terms), strict=False)
    shares = [column.coefficients[0] * sum(map(float, counts)) for counts in owns]
    right = any(isclose(share, 1.0, rel_tol=1e-3) for share in shares)
    return not right and any(isclose(share * n, 1.0, rel_tol=1e-3) for share in shares)


def _are_averaged(columns: list[Column], n: int) -> bool:
    """Does each micro-batch take an average of its own losses, which are alike and have no weights?"""
    coefficients = [coefficient for column in columns for coefficient in column.coefficients]
    alike = len({column.name for column in columns}) == 1 < len(columns) != n and nearly_equal(coefficients)
    weighed = any(term.times for column in columns for term in column.terms)
    return alike and not weighed and isclose(sum(coefficients[::n]), 1.0, rel_tol=1e-3)


def _is_only_weighed(column: Column, columns: list[Column], update: AuditedUpdate) -> bool:
    """Is a mean multiplied by nothing but weights that the script names, where no other loss is divided either?

    A number by which all losses are multiplied may be that of the samples, of which a sum is made in this way.
    """
    if update.on_ranks or _is_clear(update.size, columns):
        return False
    times = column.terms[0].times
    shared = [x for x in times if x > 1 and x == int(x) and all(x in each.terms[0].times for each in columns)]
    divided = any(term.over for each in columns for term in each.terms)
    places = [update.where, *(call.where for call in update.fresh)]
    return bool(times) and not shared and not divided and are_written(times, places)


def _is_clear(n: int, columns: list[Column]) -> bool:
    """Does something tell how a window's losses are scaled, or is there nothing to tell?"""
    single = [column.reduction for column in columns] == ["sum"]
    means = [column.share for column in columns if column.reduction == "mean"]
    alike = any(isclose(share, 1.0, rel_tol=1e-3) for share in (*means, sum(means)))
    by_choice = any(each.reduction == "sum" and nearly_equal([1.0, each.share / n]) for each in columns)
    return single or alike or by_choice or any(not each.steady or each.is_divided(n) for each in columns)


def _tails(record: AuditedRecord, n: int, updates: list[AuditedUpdate], full: list[Column]) -> Iterator[Difference]:
    """A short window whose loss is divided by n. `full` holds the losses of a full window."""
    if full[0].coefficients[0] >= 1 and not full[0].is_divided(n):  # as where sums over samples make tails count less
        return
    late = updates[0].size < n  # a first window that is short is no tail, and later ones may be short because of it
    ends = {update: ends_an_epoch(update, updates) for update in updates[late:] if update.size < n}
    for update in sorted(ends, key=ends.get, reverse=True):  # what is certain before what may be meant
        tail = columns_of(update)
        if tail is None or len(tail) != len(full) or not tail[0].reduction == full[0].reduction == "mean":
            continue
        ratio = _ratio(tail[0], full[0])
        if not isclose(ratio, 1.0, rel_tol=1e-2) and isclose(ratio, update.size / n, rel_tol=1e-2):
            text = f"a short window of {count_noun(update.size, 'micro-batch')} is divided by {n}, so its update is "
            text += f"{ratio:.2f} of its mean gradient"
            where, fix = division_of(update.fresh[0].where), "divide by what the window holds"
            numbers = {"short_window": update.size, "factor": ratio, "window": n}
            yield Difference("tail", record, where, text, [update], about=updates, fix=fix, **numbers)


def ends_an_epoch(update: AuditedUpdate, updates: list[AuditedUpdate]) -> bool:
    """Do the data end with it? Where no epochs are seen, other windows are as short, or it is the last."""
    place = updates.index(update)
    if place + 1 == len(updates):
        return True
    epochs = update.fresh[-1].epoch, updates[place + 1].fresh[0].epoch
    return epochs[0] != epochs[1] if None not in epochs else sum(each.size == update.size for each in updates) > 1


def _ratio(tail: Column, full: Column) -> float:
    """How much a short window counts beside a full one."""
    counts = {tuple(map(float, term.own)) for term in (*tail.terms, *full.terms)}
    if len(counts) == 1 and counts != {()}:  # over which of its counts each sum was taken as a mean doesn't matter here
        return sum(term.per_item for term in tail.terms) / sum(term.per_item for term in full.terms)
    return tail.share / full.share


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
    for record in history.stepped:
        updates = [update for update in record.filled if update.size >= 2 and not update.skipped]
        uneven = [
            (update, column, columns)
            for update in updates
            for columns in [columns_of(update) or []]
            for column in columns
            if column.uneven and column.reduction != "sum" and column.steady
        ]
        if uneven:
            yield _means_of_means(record, updates, uneven)


def _means_of_means(record: AuditedRecord, updates: list[AuditedUpdate], uneven: list[tuple]) -> Difference:
    """The most unequal window is the evidence."""
    worst = [each for each in uneven if not is_by_choice(*each[1:])] or uneven
    update, column, _ = max(worst, key=lambda each: _spread(each[1]))
    weights = [term.per_item * sum(column.counts) / column.share for term in column.terms]
    text = (
        f"micro-batches of {_listed(column.counts)} samples or tokens count alike, which is {_listed(weights, '.2g')} "
    )
    text += "times what they should"
    where, numbers = division_of(update.fresh[0].where), {"counts": column.counts[:8], "weights": weights[:8]}
    return Difference("uneven", record, where, text, [update], about=(uneven, updates), windows=len(worst), **numbers)


def _listed(numbers: list[float], form: str = "g") -> str:
    return ", ".join(format(number, form) for number in numbers[:_SHOWN])


def is_by_choice(column: Column, columns: list[Column]) -> bool:
    """Do the items of another loss beside it count alike? Then it may be a mean by choice, as classes have weights."""
    return any(each.items_count_alike for each in columns) or any(term.by_class for term in column.terms)


def _spread(column: Column) -> float:
    weights = [term.per_item for term in column.terms]
    return max(weights) / min(weights)
