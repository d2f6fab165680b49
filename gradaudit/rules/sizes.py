"""How many micro-batches each window holds: as many as the others, or as were declared, and none left at the end."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import isclose

from gradaudit.history import AuditedUpdate, History, count_noun
from gradaudit.loops import go_over_something
from gradaudit.rules.registry import ERROR, UNDECIDED, Finding, rule
from gradaudit.rules.shapes import Odd, around, carried_over, mean_size, odd_window, of_any_length, unexplained
from gradaudit.rules.terms import losses_of
from gradaudit.rules.windows import useful_sites, whole_windows


@rule(
    "irregular-window",
    symptom="The first update comes early: windows of 1, N, N.",
    fix="Test (i + 1) % N == 0, or loop over windows.",
    cause="The test for the step counts from 0, such as i % N == 0, or counts something else than the "
    "micro-batches of one window.",
)
def irregular_window(history: History) -> Iterator[Finding]:
    for lane in history.stepped:
        windows = _countable(history, lane)
        if history.declared:
            yield from _not_as_declared(history, lane, windows)
        elif len(windows) >= 2:
            yield from _uneven(history, lane)
        if history.size(lane) == 1:
            yield from _divided_for_nothing(lane, [w for w in windows if w.size == 1 and not w.skipped])


def _countable(history: History, lane: str) -> list[AuditedUpdate]:
    """Windows of which it is known how many micro-batches they hold."""
    return [w for w in lane.updates if w.fresh and not w.assigned]


def _not_as_declared(history: History, lane: str, windows: list[AuditedUpdate]) -> Iterator[Finding]:
    """Too large anywhere, or too small where it can't be the tail of an epoch."""
    sizes, declared = [w.size for w in windows], _declared_sizes(history, windows)
    different = [k for k, (size, meant) in enumerate(zip(sizes, declared, strict=True)) if size > meant]
    short = [k for k, (size, meant) in enumerate(zip(sizes, declared, strict=True)) if size < meant]
    if short and ((short[0] == 0 and len(sizes) > 1) or len(short) > len(sizes) / 2):
        different = sorted(different + short)
    if different:
        yield _irregular(lane, windows, different[0], f"declared: {declared[different[0]]}")


def _declared_sizes(history: History, windows: list[AuditedUpdate]) -> list[int]:
    """For each window, how many micro-batches were declared for it."""
    first = history.declared[0][1]
    return [([first] + [n for start, n in history.declared if start <= w.place])[-1] for w in windows]


def _uneven(history: History, lane: str) -> Iterator[Finding]:
    judged, odd = _odd_window(history, lane)
    windows = _countable(history, lane)
    if (n := mean_size(windows)) and (odd is None or odd.kind != "long"):
        why = f"in a pattern that repeats, and none holds the {n} by which every loss is divided"
        yield _irregular(lane, windows, next(k for k, w in enumerate(windows) if w.size < n), why)
        return
    if odd is None or _left_over(history, lane, judged, odd):
        return
    window, n, windows = judged[odd.place], odd.usual, _countable(history, lane)
    place = windows.index(window)
    if odd.kind == "all":
        sizes = [w.size for w in windows]
        yield Finding(
            UNDECIDED,
            f"windows hold {min(sizes)} to {count_noun(max(sizes), 'micro-batch')}, and no number is frequent",
            evidence={"sizes": sizes[:20]},
            fix="declare the number with --window or report.declare_window(n) if it changes on purpose",
            where=windows[0].where,
            lane=lane,
        )
    elif odd.kind == "long":
        yield _if_comparable(_step_left_out(lane, windows, place, n), windows, window, n)
    elif odd.kind == "pattern":
        why = "in a pattern that repeats, and not only as a tail"
        yield _if_comparable(_irregular(lane, windows, place, why), windows, window, n)
    elif odd.kind == "first" and window.size <= n + 1:
        off_by_one = _irregular(lane, windows, place, f"most hold {n}")
        close = window.size in (1, n - 1, n + 1) and {w.size for w in windows[1:-1]} <= {n}
        yield off_by_one if close else _if_comparable(off_by_one, windows, window, n)
    else:
        why = {
            "first": f"the others {n}; either the window shrinks on purpose, or a step was left out",
            "last": f"those before {n}; either the window grows on purpose, or a step was left out",
            "cut": f"and the next one the rest of {n}; either an epoch ends between them, or a step is too early",
        }
        yield _irregular(lane, windows, place, why[odd.kind], UNDECIDED)


def _if_comparable(finding: Finding, windows: list[AuditedUpdate], window: AuditedUpdate, n: int) -> Finding:
    """Windows of an unknown loss may be episodes, and one that calls backward elsewhere, too, has one loss more."""
    usual = next(w for w in windows if w.size == n)
    losses, sites = losses_of(usual), {call.site for call in usual.fresh}
    known = losses is not None and losses[0][0].reduction != "unknown"
    alike = known and sites >= {call.site for call in window.fresh} and not of_any_length([w.size for w in windows], n)
    if alike and not go_over_something([window]):
        return finding
    message = f"{finding.message}; a window may be an episode, or hold one loss more than others"
    return replace(finding, level=UNDECIDED, message=message)


def _whole(history: History, lane: str) -> list[AuditedUpdate]:
    """Without those that come right after a zeroing, which may have taken a part of them."""
    cut = {call.number for zeroing in lane.lost for call in [c for c in zeroing.calls if not c.used][-1:]}
    windows, before = [], 0
    for window in _countable(history, lane):
        if cut.isdisjoint(range(before + 1, window.fresh[0].number)):
            windows.append(window)
        before = window.fresh[-1].number
    return windows


def _odd_window(history: History, lane: str) -> tuple[list[AuditedUpdate], Odd | None]:
    """The window that stands out, among those that hold nothing of the epoch before."""
    windows = _whole(history, lane)
    over = {id(window) for window, _ in carried_over(windows)}
    windows, usual = unexplained([w for w in windows if id(w) not in over])
    ends = {k for k, (w, after) in enumerate(pairwise(windows)) if w.fresh[-1].epoch != after.fresh[0].epoch}
    return windows, odd_window([w.size for w in windows], ends, usual)


def _step_left_out(lane: str, windows: list[AuditedUpdate], place: int, n: int) -> Finding:
    window = windows[place]
    unknown = any(call.epoch is None for call in window.fresh)
    seen = window.size % n == 0 or not (unknown or (len(window.epochs) > 1))
    cause = "a step was left out" if seen else "a step was left out, or an epoch ended without one"
    return _irregular(
        lane,
        windows,
        place,
        f"those around it {n}; {cause}",
        UNDECIDED if window.rewritten else ERROR,  # a script that scales by hand may count samples
        "count only micro-batches that ran backward, and let no `continue` jump over the step",
    )


def _irregular(
    lane: str, windows: list[AuditedUpdate], place: int, why: str, level: str = ERROR, fix: str | None = None
) -> Finding:
    window, sizes = windows[place], [w.size for w in windows]
    return Finding(
        level,
        f"update {window.number} holds {count_noun(window.size, 'micro-batch')}, {why}: {_listed(sizes, place)}",
        evidence={"update": window.number, "sizes": [sizes[k] for k in around(sizes, place, 20)]},
        fix=fix or "step after every n-th micro-batch, counted from 1: (i + 1) % n == 0, or loop over windows",
        where=window.where,
        lane=lane,
    )


def _listed(sizes: list[int], place: int) -> str:
    """The sizes around one place.

    >>> _listed([4, 4, 8, 4], 2), _listed([4] * 20 + [8] + [4] * 20, 20)
    ('4, 4, 8, 4', '..., 4, 4, 4, 4, 8, 4, 4, 4, 4, ...')
    """
    shown = around(sizes, place, 9)
    before, after = ["..."] * (shown[0] > 0), ["..."] * (shown[-1] + 1 < len(sizes))
    return ", ".join([*before, *(str(sizes[k]) for k in shown), *after])


def _divided_for_nothing(lane: str, windows: list[AuditedUpdate]) -> Iterator[Finding]:
    """Losses divided by a whole number, and a step after each of them: is the step in the wrong place?"""
    losses = [losses_of(w) for w in windows]
    alone = [columns[0] for columns in losses if columns and len(columns) == 1]
    factors = {terms[0].coefficient for terms in alone if terms[0].reduction != "sum"}  # a sum is divided by a count
    (factor,) = factors if len(factors) == 1 else (1.0,)
    if len(windows) > 2 and 0 < factor < 0.6 and isclose(1 / factor, round(1 / factor), rel_tol=1e-6):
        n = round(1 / factor)
        yield Finding(
            UNDECIDED,
            f"every loss is multiplied by 1/{n}, and every micro-batch has its own step; was a window of {n} intended?",
            evidence={"coefficient": factor, "window": 1},
            fix=f"step after every {n} micro-batches, or do not divide; --window {n} decides it",
            where=windows[0].where,
            lane=lane,
        )


@rule(
    "leftover-gradients",
    symptom="Fewer updates than batches / N, rounded up.",
    fix="Make an update from the short window at every epoch's end.",
    cause="The number of micro-batches isn't a multiple of N, and nothing steps after the last of an epoch: they "
    "are lost, or join the next epoch's first update.",
)
def leftover_gradients(history: History) -> Iterator[Finding]:
    for lane in [] if history.failed else [r for r in history.records if r.left_over]:
        yield _never_used(history, lane)
    if not history.declared:
        for lane in history.stepped:
            yield from _inherited_tail(history, lane)


def _never_used(history: History, lane: str) -> Finding:
    calls = lane.left_over
    useful = useful_sites(history, lane)
    read = {call.site for _, call in lane.lost_calls} - useful  # and then zeroed
    elsewhere = useful and all(call.site not in useful or call.site in read for call in calls)
    resumed = any(
        w.assigned and (not w.fresh or w.fresh[-1].number > calls[-1].number)
        for other in history.stepped
        if other != lane
        for w in other.updates[:1]
    )
    dropped = {id(z): z.calls for z in lane.lost if any(not call.used for call in z.calls)}
    given_up = dropped and whole_windows(
        history, lane, [call for lost in [*dropped.values(), calls] for call in lost],
        [len(lost) for lost in [*dropped.values(), calls]],
    )  # fmt: skip
    idle = not lane.made and bool(history.stepped) and not lane.by_itself
    ended = len(calls) == history.size(lane) == 1 < len(lane.updates) and not (elsewhere or given_up)
    of_calls = f"{len(calls):,} backward calls" if len(calls) > 1 else "backward call"
    return Finding(
        UNDECIDED if elsewhere or resumed or given_up or idle or ended else ERROR,
        f"the gradients of the last {of_calls} of the run were never used by a step"
        + ("; no call from there ever reaches a step, which may be intended" if elsewhere else "")
        + ("; whole windows were dropped without a step before, which may be intended" if given_up else "")
        + ("; another optimizer began with gradients from elsewhere, perhaps with these" if resumed else "")
        + ("; other optimizers made steps, and this one none, which may come later" if idle else "")
        + ("; the run ended before its step, and each of the others has one" if ended else ""),
        evidence={"backward_calls": len(calls)},
        fix="make one more update after the loop, from the micro-batches that are left",
        where=calls[-1].where,
        lane=lane,
    )


def _inherited_tail(history: History, lane: str) -> Iterator[Finding]:
    """A window that also holds what was left over at the end of the epoch before."""
    countable = windows = _countable(history, lane)
    over = carried_over(windows)
    if over:
        window, n = over[0]
        message = f"{window.size - n} more than the windows inside an epoch: they were left over from the epoch before"
    else:
        windows, odd = _odd_window(history, lane)
        if odd is None or not _left_over(history, lane, windows, odd):
            return
        window, n = windows[odd.place], odd.usual
        message = f"those around it {n}: {window.size - n} were left over, apparently from the end of an epoch"
    finding = Finding(
        UNDECIDED if window.rewritten else ERROR,  # a script that scales by hand may count samples
        f"update {window.number} holds {count_noun(window.size, 'micro-batch')}, {message}",
        evidence={"update": window.number, "size": window.size, "usual": n},
        fix="make an update from the short window at the end of every epoch",
        where=window.where,
        lane=lane,
    )
    yield finding if over else _if_comparable(finding, countable, window, n)


def _left_over(history: History, lane: str, windows: list[AuditedUpdate], odd: Odd) -> bool:
    """Where no epochs were seen: is it too long by as much as another window is, or as the run's end has left over?"""
    excess = windows[odd.place].size - odd.usual
    if odd.kind != "long" or excess >= odd.usual or windows[odd.place].fresh[0].epoch is not None:
        return False
    as_long = sum(w.size == odd.usual + excess for w in windows)
    return as_long > 1 or len(lane.left_over) == excess
