"""The exercise of notebook 07: the plan of one epoch on several ranks that hold unequal numbers of tokens."""

import math
from collections.abc import Callable
from itertools import islice
from reprlib import repr

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, number, rounded

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

Plan = list[list[tuple[float, bool]]]


@exercise("plan_epoch")
def _plan_epoch(answer: Callable) -> str:
    for counts, n in CASES:
        case = f"valid tokens {', '.join(f'{list(own)} on rank {r}' for r, own in enumerate(counts))}, n = {n}"
        plans = [_read(answer([list(own) for own in counts], rank, n), case) for rank in range(len(counts))]
        if not any(plans):
            raise Mistake("not-attempted", "your function plans no window yet.")
        right = [_right(counts, rank, n) for rank in range(len(counts))]
        _compare_windows(plans, right, case)
        for k, (window, want) in enumerate(zip(zip(*plans, strict=True), zip(*right, strict=True), strict=True)):
            where = f"{case}: window {k + 1}"
            _compare_pairs(window, want, where)
            _compare_factors(window, want, where)
    return (
        "one to four ranks, short windows, ranks that run out or hold nothing, micro-batches and windows without a "
        "token: every token counts the same, and nobody waits."
    )


def _right(counts: tuple, rank: int, n: int) -> Plan:
    plan = []
    for start in range(0, max(map(len, counts)), n):
        total = sum(sum(own[start : start + n]) for own in counts)
        mine = counts[rank][start : start + n] or (0,)
        pairs = [(len(counts) * count / total, k == len(mine) - 1) for k, count in enumerate(mine)] if total else []
        plan.append(pairs)
    return plan


def _read(given: object, case: str) -> Plan:
    if given is None or given is Ellipsis:
        raise Mistake("not-attempted", f"your function returned {given}; it should return a list of windows.")
    try:
        windows = [list(islice(window, 100)) for window in islice(given, 100)]
        pairs = [[(factor, bool(sync)) for factor, sync in window] for window in windows]
    except Exception:
        raise Mistake("wrong-type", f"{case}: expected lists of pairs (factor, sync), got {repr(given)}.") from None
    return [[(number(factor), sync) for factor, sync in window] for window in pairs]


def _compare_windows(plans: list[Plan], right: list[Plan], case: str) -> None:
    numbers, expected = [len(plan) for plan in plans], len(right[0])
    if len(set(numbers)) > 1:
        found = f"{case}: the ranks plan {numbers} windows. Who has more waits for the others"
        raise Mistake("sync-cadence", f"{found}: {expected} were expected of each.")
    if numbers[0] != expected:
        bug = "leftover-gradients" if numbers[0] < expected else "irregular-window"
        raise Mistake(bug, f"{case}: each rank plans {numbers[0]} windows, {expected} were expected.")


def _compare_pairs(window: tuple, want: tuple, where: str) -> None:
    for rank, (ours, theirs) in enumerate(zip(window, want, strict=True)):
        if ours and not theirs:
            raise Mistake("empty-step", f"{where}: no rank has a valid token, but rank {rank} plans {ours}, not [].")
        if theirs and not ours:
            raise Mistake("sync-cadence", f"{where}: rank {rank} plans nothing, and the others wait for its message.")
        if len(ours) != len(theirs):
            found = f"rank {rank} plans {len(ours)} pairs, {len(theirs)} were expected"
            raise Mistake("irregular-window", f"{where}: {found}.")
        syncs = [sync for _, sync in ours]
        if syncs != [sync for _, sync in theirs]:
            hint = "one sync, at the last pair, on every rank"
            raise Mistake("sync-cadence", f"{where}: the syncs of rank {rank} are {syncs}; {hint}.")


def _compare_factors(window: tuple, want: tuple, where: str) -> None:
    ours = [[factor for factor, _ in pairs] for pairs in window]
    theirs = [[factor for factor, _ in pairs] for pairs in want]
    shown = f"{where}: the factors are {[rounded(own) for own in ours]}, expected {[rounded(own) for own in theirs]}"
    flat = [pair for a, b in zip(ours, theirs, strict=True) for pair in zip(a, b, strict=True)]
    if not all(math.isfinite(got) for got, _ in flat):
        raise Mistake("nan", f"{shown}.")
    if any(got for got, right in flat if not right):
        raise Mistake("token-weights", f"{shown}: what has no valid token must have the factor 0.")
    times = [got / right for got, right in flat if right]
    if all(math.isclose(time, 1.0, rel_tol=1e-6) for time in times):
        return
    if all(math.isclose(time, times[0], rel_tol=1e-6, abs_tol=1e-12) for time in times):
        ranks = len(window)
        hint = (
            f": DDP divides by the {ranks} ranks once more" if math.isclose(times[0] * ranks, 1, rel_tol=1e-6) else ""
        )
        raise Mistake("loss-scale", f"{shown}. Every token counts {times[0]:.3g} times what it should{hint}.")
    low, high = min(times), max(times)
    raise Mistake("token-weights", f"{shown}. Tokens count from {low:.3g} to {high:.3g} times what they should.")
