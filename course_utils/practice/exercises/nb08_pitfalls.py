"""The exercise of notebook 08: a loop with two bugs, where fixing one hides the other."""

from collections.abc import Callable
from functools import partial

from course_utils.practice.exercises import exercise
from course_utils.practice.updates import OLD, Expected, judge_loop_on_model, run_on_tally, sgd

EQUAL, TAIL = (2,) * 8, (2,) * 10
LOOSE, TIGHT, BETWEEN = 100.0, 0.1, 0.4  # on a tally, a window of 8 samples has norm 0.35, one of 4 has 0.5


@exercise(
    "two_bugs",
    hints={
        "loss-scale": "It is the update of a short window that is wrong. How many micro-batches does it hold, and by "
        "what is each of its losses divided? Where the limit acts, clipping hides this bug.",
        "clip-timing": "How often is the gradient clipped before a step reads it? Once is enough, after the last "
        "backward pass of the window.",
        "leftover-gradients": "The short window at the end of an epoch needs its update too.",
        "irregular-window": "The short window at the end of an epoch gets one update, and no other window changes.",
        "discarded-gradients": "Zeroing runs while a window is still being collected.",
        "stale-gradients": "The model may come with gradients from before. When do you zero first?",
    },
)
def _two_bugs(answer: Callable) -> str:
    cases = ((EQUAL, 4), (TAIL, 4), (EQUAL, 1), (TAIL, 100))
    for sizes, n, dirty in (*((*each, False) for each in cases), (EQUAL, 4, True)):
        case = f"{len(sizes)} micro-batches, N = {n}, max_norm = {LOOSE:g}, which no gradient reaches"
        observed = run_on_tally(partial(_with_limit, answer, LOOSE), sizes, n, dirty)
        Expected(sizes, n).compare(observed, case, OLD if dirty else None)
    for sizes, n, max_norm in ((EQUAL, 4, TIGHT), (TAIL, 4, TIGHT), (TAIL, 4, BETWEEN), (EQUAL, 1, TIGHT)):
        case = f"{len(sizes)} micro-batches, N = {n}, max_norm = {max_norm:g}"
        observed = run_on_tally(partial(_with_limit, answer, max_norm), sizes, n)
        Expected(sizes, n).compare_clipped(observed, case, max_norm)
    for n in (1, 4, 100):
        for max_norm in (TIGHT, LOOSE):
            loop = partial(_with_limit, answer, max_norm)
            judge_loop_on_model(loop, sgd, n, (4,) * 6, max_norm, memory=False)
    return (
        "N = 1, 4 and longer than the epoch, short windows, a dirty start, limits that act always, sometimes and "
        "never: every window is its own mean, clipped once."
    )


def _with_limit(answer: Callable, max_norm: float, *loop) -> object:
    return answer(*loop, max_norm)
