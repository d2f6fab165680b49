"""The exercise of notebook 11: a loop with two bugs, where fixing one hides the other."""

from torch import nn

from course_utils.exercises.judging import exercise
from course_utils.exercises.loop import loops_agree, twice
from course_utils.loops import windows

EQUAL, TAIL, REAL = (2,) * 12, (2,) * 11, (4,) * 6
LOOSE, TIGHT, BETWEEN = 100.0, 0.1, 0.4  # on a tally, a window of 8 samples has norm 0.35, one of 6 has 0.41


def solution(model, batches, loss_fn, optimizer, n, max_norm):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) / len(window)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


CASES = [
    *(twice(*each, max_norm=LOOSE) for each in ((EQUAL, 4), (TAIL, 4), (EQUAL, 1), (TAIL, 100))),
    twice(EQUAL, 4, dirty=True, max_norm=LOOSE),
    twice(EQUAL, 4, factors=[(0, 1000.0)], max_norm=1e12),
    *(twice(TAIL, 4, max_norm=max_norm) for max_norm in (TIGHT, BETWEEN)),
    twice(REAL, 4, real=True, max_norm=LOOSE),
    *(twice(REAL, n, real=True, max_norm=TIGHT) for n in (1, 4, 100)),
]


@exercise
def two_bugs(answer):
    loops_agree(answer, solution, CASES)
    return (
        "N = 1, 4 and longer than the epoch, short windows, old gradients, limits that act always, sometimes and "
        "never: every window is its own mean, clipped once, and only one micro-batch's graph is held at a time."
    )
