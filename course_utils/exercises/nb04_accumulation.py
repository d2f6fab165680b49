"""The exercise of notebook 04: accumulation over full windows of equal micro-batches."""

from course_utils.exercises.judging import exercise
from course_utils.exercises.loop import loops_agree, twice

# 1/3 is the first share that a few digits do not hold
CASES = [*(twice((2,) * 4 * n, n=n) for n in (2, 4, 3, 1)), twice((2,) * 4, n=2, old_gradient=True)]


@exercise("N = 1, 2, 3 and 4, with and without old gradients: every window is the large batch.")
def accumulate_equal(answer):
    loops_agree(answer, CASES)
