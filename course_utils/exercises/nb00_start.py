"""The exercise of notebook 00: a loop with one update per batch."""

from course_utils.exercises.judging import exercise
from course_utils.exercises.loop import loops_agree
from course_utils.exercises.nb02_zeroing import CLEAN


@exercise("no old gradients at the start, batches equal or not: every update holds its own batch and nothing else.")
def first_loop(answer):
    loops_agree(answer, CLEAN)
