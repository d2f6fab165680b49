"""What the user's code made of each loss, and of each sample or token in it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from math import isclose

from gradaudit.history import AuditedUpdate, History, Term, count_noun
from gradaudit.loops import go_over_something
from gradaudit.rules.registry import ADVICE, ERROR, UNDECIDED, Finding, rule
from gradaudit.rules.roles import why_a_sum
from gradaudit.rules.shapes import of_any_length
from gradaudit.rules.terms import DIVIDE_ONCE, divides, items_count_alike, losses_of, nearly_equal, total
from gradaudit.source import are_written


@rule(
    "loss-scale",
    symptom="The gradient's norm, and the best learning rate, depend on N.",
    fix="Divide each mean by its window's micro-batches, or weight it by its tokens.",
    cause="Gradients of a window are summed, so means that nobody divides add up to N times the mean; a division "
    "by a fixed N is wrong for a short window.",
)
def loss_scale(history: History) -> Iterator[Finding]:
    for lane in history.stepped:
        windows = [w for w in lane.updates if w.fresh and not w.skipped]
        n = history.size(lane)
        full = [w for w in windows if w.size == n]
        if n >= 2 and full:
            verdicts = islice(_scale_verdicts(history, lane, windows, full), 1)
            yield from map(_unless_it_divides, verdicts) if lane.by_itself else verdicts


def _unless_it_divides(finding: Finding) -> Finding:
    return replace(finding, level=UNDECIDED, message=f"{finding.message}, unless the update by hand divides")


_ENOUGH = 4  # numbers, at least, that are hardly the same by chance
_NOT_FOUND = "no loss was found that PyTorch's own functions reduce"
_BY_HAND = "check by hand that a window's weighted losses add up to one mean"


def _scale_verdicts(history: History, lane: str, windows: list[AuditedUpdate], full: list[AuditedUpdate]) -> Iterator[Finding]:
    """All that is to be said about the scale of a lane's losses; the first verdict counts."""
    n = full[0].size
    losses = losses_of(full[0])
    if any(w.rewritten for w in windows):
        why = "the script changes the gradients itself before the step"
        yield _unknown_scale(lane, full[0], why, "check by hand that the window's gradient is a mean")
    elif lane.own_step:
        why = "the optimizer's step is the script's own, and may divide"
        yield _unknown_scale(lane, full[0], why, "check by hand that the window's gradient is a mean")
    elif lane.hooked:
        why = "gradients go through hooks of the script, which may change them"
        yield _unknown_scale(lane, full[0], why, "check by hand that the window's gradient is a mean")
    elif full[0].of_several_tasks:
        why = "the window's backward calls reach different parameters, as those of several tasks do"
        yield _unknown_scale(lane, full[0], why, "check by hand that the micro-batches of each task add up to one mean")
    elif losses is None:
        differ = any(call.terms for call in full[0].micro_batches)
        why = "the micro-batches of a window have different losses" if differ else _NOT_FOUND
        yield _unknown_scale(lane, full[0], why, _BY_HAND)
    elif losses[0][0].reduction == "unknown":
        if not any(isclose(total(terms), 1.0, rel_tol=1e-3) for terms in losses):  # what is divided by n may be right
            yield _unknown_scale(lane, full[0], _NOT_FOUND, _BY_HAND)
    else:
        # ranks that share a mean look buggy in one window by chance
        comparable = full if full[0].on_ranks else full[:1]
        why = why_a_sum(full) or _why_not_for_this_window(history, windows, full)
        why = ("their targets are the same" if _repeats_its_targets(full) else "") or why
        yield from _scale_of_several(lane, full[0], losses, why or next(filter(None, map(_why_no_mean, losses)), ""))
        for k, terms in enumerate(losses):
            if terms[0].reduction == "mean":
                alike = [other[k] for other in map(losses_of, comparable) if other and len(other) > k]
                alone = len(losses) == 1 and len(full[0].fresh) == n  # other backward calls may bring the rest
                weighed = _is_only_weighed(k, losses, full[0])
                yield from _scale_of_a_mean(lane, full[0], alike, alone, weighed, why or _why_no_mean(terms))
            elif len(losses) == 1 and not full[0].on_ranks:
                yield from _scale_of_a_sum(lane, full[0], terms)
        yield from _tail_scale(lane, n, windows, losses)
        if not full[0].on_ranks and not _is_clear(n, losses):
            yield _unknown_scale(lane, full[0], "each loss has a weight that may hide a division", _BY_HAND)


def _is_clear(n: int, losses: list[list[Term]]) -> bool:
    """Does something tell how a window's losses are scaled, or is there nothing to tell?"""
    single = [terms[0].reduction for terms in losses] == ["sum"]  # it has verdicts of its own
    vary = any(not nearly_equal([term.coefficient for term in terms]) for terms in losses)  # for `token-weights`
    means = [total(terms) for terms in losses if terms[0].reduction == "mean"]
    alike = any(isclose(share, 1.0, rel_tol=1e-3) for share in (*means, sum(means)))
    by_choice = any(terms[0].reduction == "sum" and nearly_equal([1.0, total(terms) / n]) for terms in losses)
    return single or vary or alike or by_choice or any(_is_divided(n, terms) for terms in losses)


def _is_divided(n: int, terms: list[Term]) -> bool:
    return all(divides(n, term) for term in terms)


def _unknown_scale(lane: str, window: AuditedUpdate, why: str, fix: str) -> Finding:
    message, evidence = f"{why}, so nothing is said about the scale of the loss", {"window": window.size}
    return Finding(UNDECIDED, message, evidence=evidence, fix=fix, where=window.where, lane=lane)


def _why_no_mean(terms: list[Term]) -> str:
    """What speaks for micro-batches whose means are not to be averaged; "" if nothing does."""
    if all(term.in_part for term in terms):
        return "each compares its own samples with others that have no graph, as those of the other micro-batches"
    if all(term.adapted for term in terms):
        return "each goes back through an update of the weights, as the tasks of meta-learning do"
    return "each may be the mean of one episode" if _of_unequal_units(terms) else ""


def _why_not_for_this_window(history: History, windows: list[AuditedUpdate], full: list[AuditedUpdate]) -> str:
    """What speaks for losses that are not made for windows of this size."""
    if of_any_length([w.size for w in windows], full[0].size):
        return "the windows are of any length, as episodes are"
    if go_over_something(full):
        return "nothing says that the loop around them goes over micro-batches"
    lane, calls = full[0].record, full[0].micro_batches
    sooner = [w for w in history.updates if w.record is not lane and w.size == 1 and calls[0] in w.fresh]
    return "each is used for an update of another optimizer as well" if sooner else ""


def _of_unequal_units(terms: list[Term]) -> bool:
    """May each micro-batch be one sample, such as an episode, that is as long as it is?"""
    counts = [term.count for term in terms]
    return any(term.of_one for term in terms) and None not in counts and not nearly_equal(counts)


def _repeats_its_targets(windows: list[AuditedUpdate]) -> bool:
    """Do the micro-batches of a window have the same targets, and those of another window others?"""
    repeated = []
    for window in windows:
        targets = [[term.targets for term in terms] for terms in losses_of(window) or []]
        counts = [Counter(each).most_common(1)[0] for each in targets if min(map(len, each)) >= _ENOUGH]
        if counts:
            most, count = max(counts, key=lambda entry: entry[1])
            if count < max(2, window.size - 1):
                return False
            repeated.append(most)
    return len(set(repeated)) > 1


def _scale_of_a_mean(
    lane: str, window: AuditedUpdate, alike: list[list[Term]], alone: bool, weighed: bool, why_a_sum: str
) -> Iterator[Finding]:
    """Verdicts on one mean-reduced loss. `alike` holds its terms in `window`, and in others that are compared to it."""
    n, totals = window.size, [total(terms) for terms in alike]
    coefficients = [term.coefficient for term in alike[0]]
    evidence = {
        "update": window.number,
        "window": n,
        "factor": totals[0],
        "coefficients": coefficients[:8],
        "loss": alike[0][0].name,
    }
    if all(isclose(term.coefficient, 1.0, rel_tol=1e-3) for terms in alike for term in terms):
        weight = _weight_that_cancels(alike)
        level = UNDECIDED if why_a_sum or weight else ERROR
        message = (
            f"the mean loss of each of {count_noun(n, 'micro-batch')} counts in full, so every update is "
            f"{totals[0]:.1f} times too large"
            + (f", unless a sum is meant: {why_a_sum}" if why_a_sum else "")
            + (f", unless it has a weight of {weight:g}" if weight and not why_a_sum else "")
        )
        fix = (
            f"divide each loss by the micro-batches of its window ({n}), or weight it by its share of the window's "
            "samples or tokens"
        )
    elif alone and all(term.row > 1 and isclose(term.coefficient, term.row) for terms in alike for term in terms):
        level, fix = UNDECIDED, f"divide each by the micro-batches of its window ({n})"
        message = (
            f"the mean loss of each of {count_noun(n, 'micro-batch')} is multiplied by {alike[0][0].row}, the numbers "
            f"of a sample; if that makes it a mean over samples, every update is {n} times too large"
        )
    elif alone and all(isclose(share * n, 1.0, rel_tol=1e-3) for share in totals):  # several losses may have weights
        level, message, fix = _divided_twice(n, alike[0])
    elif weighed:
        level, fix = UNDECIDED if why_a_sum else ERROR, f"divide each by the micro-batches of its window ({n})"
        message = (
            f"nothing divides the losses of {count_noun(n, 'micro-batch')}: the mean of each is multiplied by "
            f"{' and by '.join(f'{number:g}' for number in alike[0][0].times)} alone, so every update is {n} times too "
            "large" + (f", unless a sum is meant: {why_a_sum}" if why_a_sum else "")
        )
    elif window.on_ranks and not nearly_equal(totals):
        level, evidence = UNDECIDED, {**evidence, "totals": totals[:64]}
        message = (
            f"the coefficients of a window add up to {', '.join(f'{share:.3g}' for share in totals[:6])} "
            "on this rank; whether they add up to one mean over all ranks cannot be seen from here"
        )
        fix = "add them up over the reports of all ranks: the sum must be the number of ranks in each window"
    else:
        return
    yield Finding(level, message, evidence=evidence, fix=fix, where=window.fresh[0].where, lane=lane)


def _is_only_weighed(k: int, losses: list[list[Term]], window: AuditedUpdate) -> bool:
    """Is a mean multiplied by nothing but weights that the script names, where no other loss is divided either?

    A number by which all losses are multiplied may be that of the samples, of which a sum is made in this way.
    """
    known = [term for terms in losses for term in terms if None not in (term.times, term.over)]
    if window.on_ranks or len(known) < len(losses) * window.size or _is_clear(window.size, losses):
        return False
    times = losses[k][0].times
    shared = [x for x in times if x > 1 and x == int(x) and all(x in terms[0].times for terms in losses)]
    places = [window.where, *(call.where for call in window.fresh)]
    return bool(times) and not shared and not any(term.over for term in known) and are_written(times, places)


def _weight_that_cancels(alike: list[list[Term]]) -> float:
    """By what a loss is multiplied that is divided by as much; 0 if that is not so."""
    return next((max(term.times) for terms in alike for term in terms if term.times), 0.0)


def _divided_twice(n: int, terms: list[Term]) -> tuple[str, str, str]:
    """What a script divides by is a count; what it multiplies by may be a weight."""
    halved = n == 2 and not terms[0].name.startswith("NllLoss")  # as squares and the losses of a critic are
    if not halved and not any(term.weighted if term.times is None else term.times for term in terms):
        return ERROR, f"the loss is divided by {n} twice, so every update is {n} times too small", DIVIDE_ONCE
    message = f"every update is 1/{n} of the mean over its window: the loss is divided by {n} twice, or has a weight"
    return UNDECIDED, message, f"{DIVIDE_ONCE}, if no weight is intended"


def _scale_of_several(lane: str, window: AuditedUpdate, losses: list[list[Term]], why_a_sum: str) -> Iterator[Finding]:
    """Losses of which each micro-batch takes an average of its own, alike or with weights that add up to 1."""
    n, k = window.size, len(losses)
    coefficients = [term.coefficient for terms in losses for term in terms]
    weights = coefficients[::n]
    alike = len({terms[0].name for terms in losses}) == 1 and nearly_equal(coefficients)
    share = sum(weights)
    if k < 2 or k == n or not (alike or _are_weights(losses)):
        return
    if isclose(share, 1.0, rel_tol=1e-3):
        certain = not why_a_sum and (not alike or all(map(_is_only_an_average, losses)))
        yield Finding(
            ERROR if certain else UNDECIDED,
            f"the weights of the {k} losses of a micro-batch add up to 1, and nothing divides them by {n}, so every "
            f"update is {n}.0 times too large" + (f", unless a sum is meant: {why_a_sum}" if why_a_sum else ""),
            evidence={"update": window.number, "window": n, "losses": k, "coefficients": coefficients[:8]},
            fix=f"divide each by the micro-batches of its window ({n})" if certain else _BY_HAND,
            where=window.fresh[0].where,
            lane=lane,
        )
    elif alike and isclose(share * n * n, 1.0, rel_tol=1e-3):
        yield Finding(
            UNDECIDED,
            f"the {k} losses of a micro-batch are multiplied by {weights[0]:.3g}; if that makes their mean, every "
            f"update is {n} times too small",
            evidence={"update": window.number, "window": n, "losses": k, "coefficients": coefficients[:8]},
            fix=_BY_HAND,
            where=window.fresh[0].where,
            lane=lane,
        )


def _are_weights(losses: list[list[Term]]) -> bool:
    """Is each a mean that is multiplied by one number, the same in all, and divided by none?

    Were they weights over n, n times each would be a plain number.
    """
    n = len(losses[0])
    plain = [isclose(n * terms[0].coefficient, round(n * terms[0].coefficient), rel_tol=1e-3) for terms in losses]
    return not all(plain) and all(
        terms[0].reduction == "mean"
        and nearly_equal([term.coefficient for term in terms])
        and all(term.times and len(term.times) == 1 and term.over == () for term in terms)
        for terms in losses
    )


def _is_only_an_average(terms: list[Term]) -> bool:
    """Is a loss divided by one number at most, so that it has no weight that hides a division?"""
    return all(None not in (term.times, term.over) and len(term.times + term.over) <= 1 for term in terms)


def _scale_of_a_sum(lane: str, window: AuditedUpdate, terms: list[Term]) -> Iterator[Finding]:
    """Verdicts on a sum that is not a mean in disguise: its numbers should count 1 / (all that the window holds)."""
    n, coefficients = window.size, [term.coefficient for term in terms]
    if nearly_equal([1.0, *coefficients]) or not nearly_equal(coefficients):
        return  # sums by choice; and weights that differ are for `token-weights`
    shares = [coefficients[0] * sum(map(float, counts)) for counts in zip(*(term.own for term in terms), strict=False)]
    if any(isclose(share, 1.0, rel_tol=1e-3) for share in shares):
        return
    if any(isclose(share * n, 1.0, rel_tol=1e-3) for share in shares):
        level, message, fix = _divided_twice(n, terms)
    else:
        level, fix = UNDECIDED, _BY_HAND
        message = (
            f"the sum of each micro-batch is multiplied by {coefficients[0]:.3g}; whether they add up to the mean over "
            "the window cannot be seen"
        )
    evidence = {"update": window.number, "window": n, "coefficients": coefficients[:8], "loss": terms[0].name}
    yield Finding(level, message, evidence=evidence, fix=fix, where=window.fresh[0].where, lane=lane)


def _tail_scale(lane: str, n: int, windows: list[AuditedUpdate], full: list[list[Term]]) -> Iterator[Finding]:
    """A short window whose loss is divided by n. `full` holds the losses of a full window."""
    if full[0][0].coefficient >= 1 and not _is_divided(n, full[0]):  # as where sums over samples make tails count less
        return
    late = windows[0].size < n  # a first window that is short is no tail, and later ones may be short because of it
    ends = {w: _ends_an_epoch(w, windows) for w in windows[late:] if w.size < n}
    for window in sorted(ends, key=ends.get, reverse=True):  # an error before what is undecided
        tail = losses_of(window)
        if tail is None or len(tail) != len(full) or not tail[0][0].reduction == full[0][0].reduction == "mean":
            continue
        ratio = _ratio(tail[0], full[0])
        if not isclose(ratio, 1.0, rel_tol=1e-2) and isclose(ratio, window.size / n, rel_tol=1e-2):
            yield Finding(
                ERROR if ends[window] and not late else UNDECIDED,
                f"a short window of {count_noun(window.size, 'micro-batch')} is divided by {n}, so its update is "
                f"{ratio:.2f} of its own mean gradient"
                + "; it is in the middle of an epoch, as where a micro-batch is left out"
                * (not ends[window]),
                evidence={"update": window.number, "window": n, "short_window": window.size, "factor": ratio},
                fix="divide by what the window holds",
                where=window.fresh[0].where,
                lane=lane,
            )


def _ends_an_epoch(window: AuditedUpdate, windows: list[AuditedUpdate]) -> bool:
    """Do the data end with it? Where no epochs are seen, other windows are as short, or it is the last."""
    place = windows.index(window)
    if place + 1 == len(windows):
        return True
    epochs = window.fresh[-1].epoch, windows[place + 1].fresh[0].epoch
    return epochs[0] != epochs[1] if None not in epochs else sum(w.size == window.size for w in windows) > 1


def _ratio(tail: list[Term], full: list[Term]) -> float:
    """How much a short window counts beside a full one."""
    counts = {tuple(map(float, term.own)) for term in (*tail, *full)}
    if len(counts) == 1 and counts != {()}:  # over which of its counts each sum was taken as a mean doesn't matter here
        return sum(term.per_item for term in tail) / sum(term.per_item for term in full)
    return total(tail) / total(full)


@rule(
    "token-weights",
    symptom="Losses agree, gradients do not; short sequences count more.",
    fix="Multiply each mean by its tokens over those of the window.",
    cause="Each micro-batch takes the mean over its own targets, so a target in a short micro-batch gets more "
    "weight than one in a long micro-batch.",
)
def token_weights(history: History) -> Iterator[Finding]:
    for lane in history.stepped:
        windows = [w for w in lane.updates if w.size >= 2 and not w.skipped]
        uneven = [
            (window, terms, losses)
            for window in windows
            for losses in [losses_of(window) or []]
            for terms in losses
            if None not in [term.per_item for term in terms] and not items_count_alike(terms)
        ]
        sums = [(window, terms) for window, terms, _ in uneven if terms[0].reduction == "sum"]
        means = [
            (_level_of_means(terms, losses), window, terms)
            for window, terms, losses in uneven
            if terms[0].reduction != "sum" and nearly_equal([term.coefficient for term in terms])
        ]
        if means:
            yield _mean_of_means(lane, windows, means)
        elif sums:
            yield _weighted_otherwise(lane, *sums[0])
        elif strange := [(window, terms) for window, terms, losses in uneven if _is_strange(window, terms, losses)]:
            yield _weighted_otherwise(lane, *strange[0])
        else:
            yield from _means_of_ranks(lane, history)


def _level_of_means(terms: list[Term], losses: list[list[Term]]) -> str:
    if any(map(items_count_alike, losses)) or any(term.by_class for term in terms):
        return ADVICE  # two losses may have weights, and so have classes
    alike = len({each[0].name for each in losses}) == 1
    counts = [[term.count for term in of_one_call] for of_one_call in zip(*losses, strict=True)]
    unequal = any(None not in each and not nearly_equal(each) for each in counts)
    return UNDECIDED if alike and unequal else ERROR  # a mean for each sample of a micro-batch, as long as it is


def _mean_of_means(lane: str, windows: list[AuditedUpdate], means: list[tuple[str, AuditedUpdate, list[Term]]]) -> Finding:
    """Micro-batches of unequal counts whose means count alike: the most unequal window is the evidence."""
    full = [w for w in windows if w.size == len(means[0][2])]
    level = next(each for each in (UNDECIDED, ERROR, ADVICE) if any(level == each for level, *_ in means))
    one_each = level == UNDECIDED or any(_of_unequal_units(terms) for _, _, terms in means)
    anything = bool(full) and go_over_something(full)
    means = [(window, terms) for each, window, terms in means if each == level]
    window, terms = max(means, key=lambda entry: _spread([term.per_item for term in entry[1]]))
    counts = [term.count for term in terms]
    weights = [term.per_item * sum(counts) / total(terms) for term in terms]
    if _short_where_the_data_end(means, windows):
        level = ADVICE
    elif why_a_sum(full) or one_each:
        level = UNDECIDED
    return Finding(
        UNDECIDED if anything else level,
        f"micro-batches of {', '.join(f'{count:g}' for count in counts[:6])} samples or tokens count alike, "
        f"so that one of them counts {', '.join(f'{weight:.2g}' for weight in weights[:6])} times what it should"
        + (", unless each mean is over one sample, such as an episode" if one_each else ""),
        evidence={"update": window.number, "counts": counts[:8], "weights": weights[:8], "windows": len(means)},
        fix="multiply each mean loss by its samples or tokens over those of the window",
        where=window.fresh[0].where,
        lane=lane,
    )


def _spread(weights: list[float]) -> float:
    return max(weights) / min(weights)


def _short_where_the_data_end(means: list[tuple[AuditedUpdate, list[Term]]], windows: list[AuditedUpdate]) -> bool:
    ends = {window.number: _epoch_of_the_shortest(window, terms) for window, terms in means}
    if any(end is not None and end == after for end, after in pairwise(ends.values())):
        return False  # the data end only once in an epoch: a batch of a DataLoader may be cut into uneven parts
    uneven = [terms for _, terms in means]
    name = uneven[0][0].name
    columns = [next((terms for terms in losses_of(w) or [] if terms[0].name == name), []) for w in windows]
    return _only_the_last_is_short(uneven, windows) or _comes_again([t.count for terms in columns for t in terms])


def _epoch_of_the_shortest(window: AuditedUpdate, terms: list[Term]) -> int | None:
    counts = [term.count for term in terms]
    return window.micro_batches[counts.index(min(counts))].epoch


def _comes_again(counts: list[float | None]) -> bool:
    """As where a window goes on over the end of a data set: every so many full micro-batches, one is short."""
    if None in counts:
        return False
    short = [k for k, count in enumerate(counts) if count < max(counts)]
    between = {after - before for before, after in pairwise(short)} or set(short)  # only once, after so many
    return len({counts[k] for k in short}) == len(between) == 1 and min(between) > 2


def _only_the_last_is_short(uneven: list[list[Term]], windows: list[AuditedUpdate]) -> bool:
    """As where a data set ends: in some windows the last micro-batch is short, and all others are of one size."""
    counts = [[term.count for term in terms] for terms in uneven]
    sizes = {count for entry in counts for count in entry[:-1]}
    full = [w for w in windows if len({term.count for terms in losses_of(w) or [] for term in terms} | sizes) == 1]
    return len(sizes) == 1 and all(entry[-1] < entry[0] for entry in counts) and (bool(full) or len(counts) > 2)


def _is_strange(window: AuditedUpdate, terms: list[Term], losses: list[list[Term]]) -> bool:
    """Whether a window's means have weights that neither their counts nor a total of 1 explain."""
    return len(losses) == 1 and not window.on_ranks and not isclose(total(terms), 1.0, rel_tol=1e-2)


def _weighted_otherwise(lane: str, window: AuditedUpdate, terms: list[Term]) -> Finding:
    weights, kind = [term.coefficient for term in terms], terms[0].reduction
    return Finding(
        UNDECIDED,
        f"the {kind}s of a window's micro-batches are multiplied by {', '.join(f'{w:.3g}' for w in weights[:6])}; "
        "whether samples or tokens count alike cannot be seen from outside",
        evidence={"update": window.number, "weights": weights[:8]},
        fix="divide every micro-batch's sum by the same number, the samples or tokens of the whole window"
        if kind == "sum"
        else "multiply each mean loss by its samples or tokens over those of the window",
        where=window.fresh[0].where,
        lane=lane,
    )


def _means_of_ranks(lane: str, history: History) -> Iterator[Finding]:
    """Each rank takes the mean over its own tokens, and the ranks' means are averaged."""
    windows = [w for w in lane.updates if w.on_ranks and not w.skipped and w.size == history.size(lane)]
    means = [losses[0] for losses in map(losses_of, windows) if losses]
    counts = [sum(term.count or 0 for term in terms) for terms in means]
    if not all(isclose(total(terms), 1.0, rel_tol=1e-3) for terms in means):
        return
    if len(counts) > 1 and not nearly_equal(counts):
        yield Finding(
            UNDECIDED,
            f"this rank takes means over {', '.join(f'{count:g}' for count in counts[:6])} samples or tokens, and the "
            "ranks' means are averaged; that is the mean over all only if every rank holds equally many",
            evidence={"counts": counts[:64], "updates": len(windows)},
            fix="divide by the count of all ranks, and multiply by the number of ranks",
            where=windows[0].fresh[0].where,
            lane=lane,
        )
