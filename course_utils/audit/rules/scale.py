"""What the user's code made of each loss, and of each item or token."""

from collections.abc import Iterator
from math import isclose, isfinite

from course_utils.audit.history import History, Term, Window
from course_utils.audit.rules.finding import ADVICE, ERROR, UNDECIDED, Finding, count_noun


def _terms(window: Window) -> list[list[Term]] | None:
    """For each loss of the window, its term in each micro-batch; None if they cannot be compared."""
    calls = window.micro_batches
    if not calls or len({call.kinds for call in calls}) != 1 or not calls[0].terms:
        return None
    terms = [list(column) for column in zip(*(call.terms for call in calls), strict=True)]
    return None if any(not isfinite(term.coefficient) for column in terms for term in column) else terms


def _same(values: list[float], tolerance: float = 1e-3) -> bool:
    return max(values) - min(values) <= tolerance * max(map(abs, values), default=1.0)


def loss_scale(history: History) -> Iterator[Finding]:
    """The gradient's norm grows with N; another N wants another rate.

    Mend: divide each mean once, by the micro-batches of its window, or weigh it by items.
    """
    for lane in history.lanes:
        windows = [w for w in history.of(lane) if w.fresh and not w.skipped]
        n = history.size(lane)
        full = [w for w in windows if w.size == n]
        if n == 1:
            yield from _divided_for_nothing(lane, full)
        if n < 2 or not full:
            continue
        if any(w.rewritten for w in windows):
            yield Finding(
                "loss-scale",
                UNDECIDED,
                "the script changes the gradients itself before the step, so nothing is said about their scale",
                "check by hand that the window's gradient is a mean",
                full[0].where,
                {"window": n},
                lane=lane,
            )
            continue
        columns = _terms(full[0])
        if columns is None:
            yield Finding(
                "loss-scale",
                UNDECIDED,
                "no loss was found that PyTorch's own functions reduce, so nothing is said about its scale",
                "check by hand that the losses of a window are weighed so that they add up to one mean",
                full[0].where,
                {"window": n},
                lane=lane,
            )
            continue
        on_ranks = full[0].on_ranks  # one window may hold by chance what looks wrong, if ranks share a mean
        for k, column in enumerate(columns):
            if column[0].reduction != "mean":
                continue
            alike = [other[k] for other in map(_terms, full if on_ranks else full[:1]) if other and len(other) > k]
            coefficients = [term.coefficient for term in column]
            totals = [sum(term.coefficient for term in terms) for terms in alike]
            evidence = {
                "update": full[0].number,
                "window": n,
                "factor": totals[0],
                "coefficients": coefficients[:8],
                "loss": column[0].name,
            }
            if all(isclose(term.coefficient, 1.0, rel_tol=1e-3) for terms in alike for term in terms):
                yield Finding(
                    "loss-scale",
                    ERROR,
                    f"the mean loss of each of {count_noun(n, 'micro-batch')} counts in full, so every update is "
                    f"{totals[0]:.1f} times too large",
                    f"divide each loss by the micro-batches of its window ({n}), or weigh it by its share of the items",
                    full[0].fresh[0].where,
                    evidence,
                    lane=lane,
                )
                break
            if all(isclose(total * n, 1.0, rel_tol=1e-3) for total in totals) and len(columns) == 1:
                # several losses may have weights
                yield Finding(
                    "loss-scale",
                    ERROR,
                    f"the loss is divided by {n} twice, so every update is {n} times too small",
                    "divide once",
                    full[0].fresh[0].where,
                    evidence,
                    lane=lane,
                )
                break
            if on_ranks and not _same(totals):
                yield Finding(
                    "loss-scale",
                    UNDECIDED,
                    f"the coefficients of a window add up to {', '.join(f'{total:.3g}' for total in totals[:6])} "
                    "on this rank; whether they add up to one mean over all ranks cannot be seen from here",
                    "add them up over the reports of all ranks: the sum must be the number of ranks in each window",
                    full[0].fresh[0].where,
                    {**evidence, "totals": totals[:64]},
                    lane=lane,
                )
                break
        else:
            yield from _tail_scale(lane, windows, full[0], n)


def _divided_for_nothing(lane: str, windows: list[Window]) -> Iterator[Finding]:
    """Losses divided by a whole number, and a step after each of them: is the step in the wrong place?"""
    terms = [_terms(w) for w in windows]
    shares = {column[0].coefficient for columns in terms if columns and len(columns) == 1 for column in columns}
    (share,) = shares if len(shares) == 1 else (1.0,)
    if len(windows) > 2 and 0 < share < 0.6 and isclose(1 / share, round(1 / share), rel_tol=1e-6):
        n = round(1 / share)
        yield Finding(
            "irregular-window",
            UNDECIDED,
            f"every loss is multiplied by 1/{n}, and every micro-batch has its own step; was a window of {n} meant?",
            f"step after every {n}-th micro-batch, or do not divide; --window {n} decides it",
            windows[0].where,
            {"coefficient": share, "window": 1},
            lane=lane,
        )


def _tail_scale(lane: str, windows: list[Window], full: Window, n: int) -> Iterator[Finding]:
    short = [w for w in windows[1:] if 0 < w.size < n]  # a first window that is short is no tail
    if windows[0].size < n:
        return
    for window in short:
        tail, whole = _terms(window), _terms(full)
        if tail is None or whole is None or len(tail) != len(whole):
            continue
        if tail[0][0].reduction != "mean":
            continue
        ratio = sum(t.coefficient for t in tail[0]) / sum(t.coefficient for t in whole[0])
        if not isclose(ratio, 1.0, rel_tol=1e-2) and isclose(ratio, window.size / n, rel_tol=1e-2):
            yield Finding(
                "loss-scale",
                ERROR,
                f"a short window of {count_noun(window.size, 'micro-batch')} is divided by {n}, so its update is {ratio:.2f} "
                "of its own mean gradient",
                "divide by what the window holds",
                window.fresh[0].where,
                {"update": window.number, "window": n, "short_window": window.size, "factor": ratio},
                lane=lane,
            )
            return


def token_weights(history: History) -> Iterator[Finding]:
    """Losses agree, gradients do not; short sequences count more.

    Mend: each mean times its items over the items of the window.
    """
    for lane in history.lanes:
        wrong = []
        windows = [w for w in history.of(lane) if w.size >= 2 and not w.skipped]
        for window in windows:
            columns = _terms(window) or []
            for column in columns:
                weights = [term.per_item for term in column]
                counts = [term.count for term in column]
                if None in weights or _even(column):
                    continue
                if column[0].reduction == "sum":
                    wrong.append((UNDECIDED, window, weights, counts))
                elif _same([term.coefficient for term in column]):
                    mean = sum(term.coefficient for term in column) / sum(counts)
                    beside = any(_even(other) for other in columns)  # a second loss may have weights of its own
                    wrong.append((ADVICE if beside else ERROR, window, [w / mean for w in weights], counts))
        errors = [entry for entry in wrong if entry[0] == ERROR] or [entry for entry in wrong if entry[0] == ADVICE]
        if not wrong:
            yield from _means_of_ranks(lane, history)
        if errors:
            _, window, weights, counts = max(errors, key=lambda entry: max(entry[2]) / min(entry[2]))
            yield Finding(
                "token-weights",
                ADVICE if _only_the_last_is_short([entry[3] for entry in errors], windows) else errors[0][0],
                f"micro-batches of {', '.join(f'{count:g}' for count in counts[:6])} items or tokens count alike, "
                f"so that one item counts {', '.join(f'{weight:.2g}' for weight in weights[:6])} times what it should",
                "multiply each mean loss by its items over the items of the window",
                window.fresh[0].where,
                {"update": window.number, "counts": counts[:8], "weights": weights[:8], "windows": len(errors)},
                lane=lane,
            )
        elif wrong:
            _, window, weights, _ = wrong[0]
            yield Finding(
                "token-weights",
                UNDECIDED,
                f"the sums of a window's micro-batches are multiplied by {', '.join(f'{w:.3g}' for w in weights[:6])}; "
                "whether items count alike cannot be seen from outside",
                "divide every micro-batch's sum by the same number, the items of the whole window",
                window.fresh[0].where,
                {"update": window.number, "weights": weights[:8]},
                lane=lane,
            )


def _means_of_ranks(lane: str, history: History) -> Iterator[Finding]:
    """Each rank takes the mean over its own tokens, and the ranks' means are averaged."""
    counts = []
    windows = [w for w in history.of(lane) if w.on_ranks and not w.skipped and w.size == history.size(lane)]
    for window in windows:
        for column in (_terms(window) or [])[:1]:
            if not isclose(sum(term.coefficient for term in column), 1.0, rel_tol=1e-3):
                return
            counts.append(sum(term.count or 0 for term in column))
    if len(counts) > 1 and not _same(counts):
        yield Finding(
            "token-weights",
            UNDECIDED,
            f"this rank takes means over {', '.join(f'{count:g}' for count in counts[:6])} items or tokens, and the "
            "ranks' means are averaged; that is the mean over all only where every rank holds equally many",
            "divide by the count of all ranks, and multiply by the number of ranks",
            windows[0].fresh[0].where,
            {"counts": counts[:64], "updates": len(windows)},
            lane=lane,
        )


def _even(column: list[Term]) -> bool:
    """Does each item of this loss count alike?"""
    weights = [term.per_item for term in column]
    return None not in weights and _same(weights, 1e-2)


def _only_the_last_is_short(counts: list[list[float]], windows: list[Window]) -> bool:
    """As where a data set ends: all micro-batches are of one size but for the last, in some windows."""
    sizes = {count for entry in counts for count in entry[:-1]}
    full = [w for w in windows if len({term.count for column in _terms(w) or [] for term in column} | sizes) == 1]
    return len(sizes) == 1 and all(entry[-1] < entry[0] for entry in counts) and (bool(full) or len(counts) > 2)
