"""The exercise of notebook 07: the plan of one epoch on several ranks that hold unequal numbers of tokens."""

import math
from collections.abc import Callable
from itertools import chain, islice
from reprlib import repr

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, close, number, rounded

# For each case, the valid tokens of each micro-batch of each rank, and n.
CASES = (
    (((4, 4), (4, 4)), 2),
    (((4, 4, 4), (4, 4, 4)), 2),
    (((2, 9, 7), (4, 5, 5)), 3),
    (((2, 9, 7), (4, 5, 5)), 1),
    (((3, 1, 4),), 2),
    (((0, 3, 0), (2, 0, 5)), 2),
    (((2, 9, 7, 1, 3), (4, 5), (6, 1, 2)), 2),
    (((3, 1, 2), ()), 2),
    (((), (), (3, 8), (1,)), 3),
    (((1, 2, 3), (4, 5, 6)), 100),
    (((0, 0, 4), (0, 0, 2)), 2),
    (((5, 2, 8, 0, 0), (1,), (3, 3, 0)), 2),
    (((1, 0, 0, 0, 0, 2), (3,)), 2),
    (((0, 0, 3), (1,)), 2),
)

Window = list[tuple[float, bool]]  # for each micro-batch of one rank its factor, and whether the ranks synchronise


@exercise(
    "plan_epoch",
    hints={
        "sync-cadence": "Some rank waits for another. Does every rank, also one that has run out, plan the same number "
        "of windows, with one sync in each, at its end?",
        "token-weights": "Some tokens count more than others. The total is that of one window, over all ranks.",
        "loss-scale": "All tokens count the same, but too little or too much. What does DDP divide by?",
        "empty-step": "There is a window in which no rank has a valid token. Look at the total before you divide.",
        "nan": "There is a window in which no rank has a valid token. Look at the total before you divide.",
        "raises": "If it is a ZeroDivisionError: there is a window in which no rank has a valid token. Otherwise print "
        "the values on the line that is named.",
        "leftover-gradients": "How many windows has the longest rank, and is the last one short?",
        "irregular-window": "How many windows has the longest rank? A window that nobody runs still has its place in "
        "the plan: [].",
    },
)
def _plan_epoch(answer: Callable) -> str:
    for counts, n in CASES:
        case = f"valid tokens {', '.join(f'{list(own)} on rank {r}' for r, own in enumerate(counts))}, n = {n}"
        plans = [_read(answer([list(own) for own in counts], rank, n), case) for rank in range(len(counts))]
        if not any(plans):
            raise Mistake("not-attempted", "your function plans no window yet.")
        wanted = [_window(counts, range(start, start + n)) for start in range(0, max(map(len, counts)), n)]
        _compare_lengths([len(plan) for plan in plans], len(wanted), case)
        for k, (got, want) in enumerate(zip(zip(*plans, strict=True), wanted, strict=True), start=1):
            _compare_pairs(got, want, f"{case}: window {k}")
            _compare_factors(got, want, f"{case}: window {k}")
    return (
        "one to four ranks, short windows, ranks that run out or hold nothing, micro-batches and windows without a "
        "token: every token counts the same, and no rank waits."
    )


def _window(counts: tuple[tuple[int, ...], ...], places: range) -> list[Window]:
    """The correct window at these places of the epoch, for each rank."""
    held = [own[places.start : places.stop] for own in counts]
    total = sum(map(sum, held))
    if not total:
        return [[] for _ in held]
    return [
        [(len(held) * c / total, k == len(own)) for k, c in enumerate(own, start=1)] or [(0.0, True)] for own in held
    ]


def _read(given: object, case: str) -> list[Window]:
    if given is None or given is Ellipsis:
        raise Mistake("not-attempted", f"your function returned {given}; it should return a list of windows.")
    try:
        windows = [list(islice(window, 100)) for window in islice(given, 100)]
        pairs = [[(factor, bool(sync)) for factor, sync in window] for window in windows]
    except Exception:
        raise Mistake("wrong-type", f"{case}: expected lists of pairs (factor, sync), got {repr(given)}.") from None
    return [[(number(factor), sync) for factor, sync in window] for window in pairs]


def _compare_lengths(lengths: list[int], want: int, case: str) -> None:
    if len(set(lengths)) > 1:
        hint = f"A rank with more windows waits for the others: {want} were expected of each"
        raise Mistake("sync-cadence", f"{case}: the ranks plan {lengths} windows. {hint}.")
    if lengths[0] != want:
        bug = "leftover-gradients" if lengths[0] < want else "irregular-window"
        raise Mistake(bug, f"{case}: each rank plans {lengths[0]} windows, {want} were expected.")


def _compare_pairs(got: tuple[Window, ...], want: list[Window], where: str) -> None:
    for rank, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        if ours and not theirs:
            raise Mistake("empty-step", f"{where}: no rank has a valid token, but rank {rank} plans {ours}, not [].")
        if theirs and not ours:
            hint = f"rank {rank} plans nothing, and the others wait for it in the all-reduce"
            raise Mistake("sync-cadence", f"{where}: {hint}.")
        if len(ours) != len(theirs):
            hint = f"rank {rank} plans {len(ours)} pairs, {len(theirs)} were expected"
            raise Mistake("irregular-window", f"{where}: {hint}.")
        syncs = [sync for _, sync in ours]
        if syncs != [sync for _, sync in theirs]:
            hint = "each rank should synchronise once, at its last pair"
            raise Mistake("sync-cadence", f"{where}: the syncs of rank {rank} are {syncs}; {hint}.")


def _compare_factors(got: tuple[Window, ...], want: list[Window], where: str) -> None:
    ours, theirs = ([[factor for factor, _ in own] for own in window] for window in (got, want))
    shown = f"{where}: the factors are {[*map(rounded, ours)]}, expected {[*map(rounded, theirs)]}"
    pairs = list(zip(chain(*ours), chain(*theirs), strict=True))
    if not all(math.isfinite(factor) for factor, _ in pairs):
        raise Mistake("nan", f"{shown}.")
    if any(factor and not correct for factor, correct in pairs):
        raise Mistake("token-weights", f"{shown}: a micro-batch without a valid token must have the factor 0.")
    times = [factor / correct for factor, correct in pairs if correct]
    if close(times, [1.0] * len(times)):
        return
    low, high, ranks = min(times, default=1.0), max(times, default=1.0), len(got)
    if not close(low, high):
        raise Mistake("token-weights", f"{shown}. Tokens count from {low:.3g} to {high:.3g} times what they should.")
    hint = f": DDP divides by the {ranks} ranks once more" if close(low * ranks, 1.0) else ""
    raise Mistake("loss-scale", f"{shown}. Every token counts {low:.3g} times what it should{hint}.")
