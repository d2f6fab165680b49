"""The exercise of notebook 11: a loop with two bugs, where fixing one hides the other."""

from collections.abc import Callable
from functools import partial

from course_utils.practice.exercises import exercise
from course_utils.practice.updates import (
    OLD,
    Expected,
    Observed,
    judge_limit,
    judge_loop_on_model,
    only_clipping_is_new,
    run_on_tally,
    sgd,
)

EQUAL, TAIL = (2,) * 12, (2,) * 11
LOOSE, TIGHT, BETWEEN = 100.0, 0.1, 0.4  # on a tally, a window of 8 samples has norm 0.35, one of 6 has 0.41


@exercise(
    "two_bugs",
    hints={
        "loss-scale": "How many micro-batches does the update hold that is named, and by what is each of its losses "
        "divided? Where the limit acts, clipping hides this bug.",
        "clip-limit": "Which number limits which norm? Compare the arguments of your clip with the task.",
        "clip-timing": "How often is the gradient clipped before a step reads it, and to which norm? Once is enough, "
        "after the last backward pass of the window.",
        "leftover-gradients": "The short window at the end of an epoch needs its update too.",
        "irregular-window": "The short window at the end of an epoch gets one update, and no other window changes.",
        "discarded-gradients": "Zeroing runs while a window is still being collected. When is it reached?",
        "stale-gradients": "The model may come with gradients from before. When do you zero first?",
        "held-graphs": "What still keeps a graph after the backward pass of its micro-batch? Look for `retain_graph`, "
        "for a sum or a list of losses, and for one `backward()` after many forward passes.",
        "wrong-value": "With a single parameter all is right. Which of your lines reaches only some of the parameters?",
        "low-precision": "The factor of a loss needs all its digits. Which line rounds it?",
    },
)
def _two_bugs(answer: Callable) -> str:
    judge_limit(partial(_run, answer, EQUAL, 4), f"{len(EQUAL)} micro-batches, N = 4")
    cases = ((EQUAL, 4), (TAIL, 4), (EQUAL, 1), (TAIL, 100))
    for sizes, n, dirty in (*((*each, False) for each in cases), (EQUAL, 4, True)):
        case = f"{len(sizes)} micro-batches, N = {n}"
        observed = run_on_tally(partial(_loop, answer, LOOSE, 1.0), sizes, n, dirty)
        case = f"{case}, max_norm = {LOOSE:g}, which no gradient reaches"
        Expected(sizes, n).compare(observed, case, OLD if dirty else None)
    for sizes, n, max_norm in ((EQUAL, 4, TIGHT), (TAIL, 4, TIGHT), (TAIL, 4, BETWEEN), (EQUAL, 1, TIGHT)):
        case = f"{len(sizes)} micro-batches, N = {n}, max_norm = {max_norm:g}"
        Expected(sizes, n).compare_clipped(_run(answer, sizes, n, 1.0, max_norm), case, max_norm)
    judge_loop_on_model(partial(_loop, answer, LOOSE, 1.0), sgd, 4, (4,) * 6, LOOSE)
    with only_clipping_is_new():
        for n in (1, 4, 100):
            judge_loop_on_model(partial(_loop, answer, TIGHT, 1.0), sgd, n, (4,) * 6, TIGHT)
    return (
        "N = 1, 4 and longer than the epoch, short windows, old gradients, limits that act always, sometimes and "
        "never: every window is its own mean, clipped once, and only one micro-batch's graph is held at a time."
    )


def _run(answer: Callable, sizes: tuple[int, ...], n: int, factor: float, max_norm: float) -> Observed:
    return run_on_tally(partial(_loop, answer, max_norm, factor), sizes, n)


def _loop(answer: Callable, max_norm: float, factor: float, model, batches, loss_fn, optimizer, n) -> object:
    """The answer as a loop that takes no limit, with each loss multiplied by `factor`."""
    return answer(model, batches, lambda model, batch: loss_fn(model, batch) * factor, optimizer, n, max_norm)
