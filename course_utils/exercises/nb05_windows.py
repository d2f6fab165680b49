"""The exercise of notebook 05: windows that may be short, of micro-batches of any size."""

from course_utils.exercises.judging import exercise
from course_utils.exercises.loop import loops_agree, twice

# Equal sizes come first: a lost tail, or one that is divided by N, then shows as itself. Six come
# first: with N = 2 a third window tells a counter that is never set back from a last window that
# gets no step.
SIZES = (2,) * 6, (2,) * 4, (4, 2, 1, 3, 2)
CASES = [*(twice(sizes, n=n) for sizes in SIZES for n in (2, 4, 1, 100)), twice((2,) * 4, n=2, old_gradient=True)]


@exercise
def accumulate(answer):
    loops_agree(answer, CASES)
    return "N = 1, 2, 4 and 100, short windows, unequal batches, old gradients: every sample counts the same."
