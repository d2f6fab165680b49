"""The exercise of notebook 04: accumulation over full windows of equal micro-batches."""

from course_utils.exercises.judging import exercise
from course_utils.exercises.loop import loops_agree, twice
from course_utils.exercises.nb05_windows import solution

CASES = [
    *(twice((2,) * 4 * n, n) for n in (2, 4, 3, 1)),  # 1/3 is the first share that a few digits do not hold
    twice((2,) * 4, 2, dirty=True),
    *(twice((4,) * 8, n, real=True) for n in (2, 4)),
]


@exercise(stage="04")
def accumulate_equal(answer):
    loops_agree(answer, solution, CASES)
    return (
        "N = 1, 2, 3 and 4, with and without old gradients, on a model that counts samples and on a real one: every "
        "window is the large batch."
    )
