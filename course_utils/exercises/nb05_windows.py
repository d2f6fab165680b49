"""The exercise of notebook 05: windows of micro-batches, of which the last may be short."""

from course_utils.exercises.judging import exercise
from course_utils.exercises.loop import loops_agree, twice

# Six come first: with N = 2 a third window tells a counter that is never set back from a last
# window that gets no step.
SIX, FOUR = (2,) * 6, (2,) * 4
CASES = [*(twice(sizes, n=n) for sizes in (SIX, FOUR) for n in (2, 4, 1, 100)), twice(FOUR, n=2, old_gradient=True)]


@exercise("N = 1, 2, 4 and 100, short windows, an iterator, old gradients: every update is the mean of its window.")
def accumulate(answer):
    # An iterator has no length, no index and no second pass
    loops_agree(lambda model, batches, *more: answer(model, iter(batches), *more), CASES)
