"""The exercise of notebook 11: a loop with two bugs, where fixing one hides the other."""

from course_utils.exercises.judging import exercise
from course_utils.exercises.loop import loops_agree, twice

EQUAL, TAIL = (2,) * 12, (2,) * 11
CASES = [
    *(twice(sizes, n=n, max_norm=100.0) for sizes, n in ((EQUAL, 4), (TAIL, 4), (EQUAL, 1), (TAIL, 100))),
    twice(EQUAL, n=4, max_norm=100.0, old_gradient=True),
    *(twice(TAIL, n=n, max_norm=0.1) for n in (1, 4, 100)),
]


@exercise
def two_bugs(answer):
    loops_agree(answer, CASES)
    return "N = 1, 4 and 100, short windows, old gradients, two limits: every window is its own mean, clipped once."
