"""The exercise of notebook 07: the plan of one epoch on several ranks that hold unequal numbers of tokens."""

import math
from collections.abc import Callable, Sequence
from itertools import chain, islice, zip_longest
from reprlib import repr

from course_utils.loops import windows
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

DIGITS = 0.00501  # a share of a window that differs by less has been rounded to two digits, or to more
Counts = Sequence[Sequence[int]]
Window = list[tuple[float, bool]]  # for each micro-batch of one rank its factor, and whether the ranks synchronise


@exercise(
    "plan_epoch",
    hints={
        "sync-cadence": "Some rank waits for another. Does every rank, also one that has run out, plan equally many "
        "windows, with one sync in each, at its end?",
        "token-weights": "Some tokens count more than others. The total is that of one window, over all ranks.",
        "loss-scale": "All tokens count the same, but too little or too much. What does DDP divide by?",
        "empty-step": "There is a window in which no rank has a valid token. Look at the total before you plan it.",
        "nan": "There is a window in which no rank has a valid token. Look at the total before you divide.",
        "raises": "If it is a ZeroDivisionError: there is a window in which no rank has a valid token. Otherwise print "
        "the values on the line that is named.",
        "leftover-gradients": "How many windows has the longest rank, and is the last one short? A window that nobody "
        "runs still has its place in the plan.",
        "irregular-window": "How many micro-batches of this rank are in that window? Each has one pair, and a rank "
        "that has run out has one pair too.",
        "filtered-windows": "A micro-batch without a valid token still is one of the n of its window. What is its "
        "factor?",
        "low-precision": "A factor needs all its digits. Which line rounds it, or makes a whole number of it?",
        "wrong-type": "A plan is a list of windows, a window a list of pairs, and a pair a number and True or False.",
        "changed-input": "Every rank plans from the same counts and needs all of them. Which line of yours changes the "
        "lists?",
    },
)
def _plan_epoch(answer: Callable) -> str:
    for counts, n in CASES:
        case = f"valid tokens {', '.join(f'{list(own)} on rank {r}' for r, own in enumerate(counts))}, n = {n}"
        plans = [_plan(answer, counts, rank, n, case) for rank in range(len(counts))]
        if not any(chain(*plans)):
            raise Mistake("not-attempted", "your function plans no window yet.")
        wanted = _windows(counts, n)
        _compare_with_filtered(list(zip_longest(*plans)), wanted, counts, n, case)
        _compare_lengths(plans, wanted, case)
        for k, (got, want) in enumerate(zip(zip(*plans, strict=True), wanted, strict=True), start=1):
            _compare_pairs(got, want, f"{case}: window {k}")
            _compare_factors(got, want, f"{case}: window {k}")
    return (
        "one to four ranks, short windows, ranks that run out or hold nothing, micro-batches and windows without a "
        "token: every token counts the same, and no rank waits."
    )


def _windows(counts: Counts, n: int) -> list[list[Window]]:
    """The correct windows of an epoch, each as all ranks plan it."""
    return [_window(counts, places) for places in windows(range(max(map(len, counts))), n)]


def _window(counts: Counts, places: list[int]) -> list[Window]:
    held = [own[places[0] : places[-1] + 1] for own in counts]
    total = sum(map(sum, held))
    if not total:
        return [[] for _ in held]
    return [
        [(len(held) * c / total, k == len(own)) for k, c in enumerate(own, start=1)] or [(0.0, True)] for own in held
    ]


def _plan(answer: Callable, counts: Counts, rank: int, n: int, case: str) -> list[Window]:
    given = [list(own) for own in counts]
    plan = _read(answer(given, rank, n), case)
    if given != [list(own) for own in counts]:
        raise Mistake("changed-input", f"{case}: the counts that your function was given are {given} afterwards.")
    return plan


def _read(given: object, case: str) -> list[Window]:
    if given is None or given is Ellipsis:
        raise Mistake("not-attempted", f"your function returned {given}; it should return a list of windows.")
    try:
        plan = [list(islice(window, 100)) for window in islice(given, 100)]
        pairs = [[(factor, bool(sync)) for factor, sync in window] for window in plan]
        swapped = [
            isinstance(factor, bool) and not isinstance(sync, bool) for window in plan for factor, sync in window
        ]
    except Exception:
        raise Mistake("wrong-type", f"{case}: expected lists of pairs (factor, sync), got {repr(given)}.") from None
    if any(swapped):
        raise Mistake("wrong-type", f"{case}: expected pairs (factor, sync), in this order, got {repr(given)}.")
    return [[(number(factor), sync) for factor, sync in window] for window in pairs]


def _compare_with_filtered(got: list, wanted: list, counts: Counts, n: int, case: str) -> None:
    filtered = [tuple(window) for window in _windows([[count for count in own if count] for own in counts], n)]
    if got == filtered != [tuple(window) for window in wanted if any(window)]:
        hint = "micro-batches without a valid token are left out before the windows are made"
        raise Mistake("filtered-windows", f"{case}: {hint}: they take their place in a window, too.")


def _compare_lengths(plans: list[list[Window]], wanted: list[list[Window]], case: str) -> None:
    lengths, want = [len(plan) for plan in plans], len(wanted)
    if len(set(lengths)) > 1:
        hint = f"A rank with more windows waits for the others: each needs {want}"
        raise Mistake("sync-cadence", f"{case}: the ranks plan {lengths} windows. {hint}.")
    if lengths[0] != want:
        ours, theirs = (max(map(len, chain(*windows)), default=0) for windows in (plans, wanted))
        bug = "leftover-gradients" if lengths[0] < want and ours <= theirs else "irregular-window"
        raise Mistake(bug, f"{case}: windows planned by each rank: {lengths[0]} instead of {want}.")


def _compare_pairs(got: tuple[Window, ...], want: list[Window], where: str) -> None:
    for rank, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        if ours and not theirs:
            raise Mistake("empty-step", f"{where}: no rank has a valid token, but rank {rank} plans {ours}, not [].")
        if theirs and not ours:
            hint = f"rank {rank} plans nothing, and the others wait for it in the all-reduce"
            raise Mistake("sync-cadence", f"{where}: {hint}.")
        if len(ours) != len(theirs):
            hint = f"pairs planned by rank {rank}: {len(ours)} instead of {len(theirs)}"
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
    if all(factor == math.floor(correct) for factor, correct in pairs):
        raise Mistake("low-precision", f"{shown}: they are whole numbers. The operator // rounds down.")
    if all(abs(factor - correct) < DIGITS * len(got) for factor, correct in pairs):
        hint = "the factors are right to a few digits only: rounded, or of a type with few digits"
        raise Mistake("low-precision", f"{where}: {hint}.")
    low, high, ranks = min(times, default=1.0), max(times, default=1.0), len(got)
    if not close(low, high):
        raise Mistake("token-weights", f"{shown}. Tokens count from {low:.3g} to {high:.3g} times what they should.")
    hint = f": DDP divides by the {ranks} ranks once more" if close(low * ranks, 1.0) else ""
    raise Mistake("loss-scale", f"{shown}. Every token counts {low:.3g} times what it should{hint}.")
