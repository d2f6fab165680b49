"""The exercise of notebook 04: accumulation over full windows of equal micro-batches."""

from course_utils.practice.bench import Exercise
from course_utils.practice.exercises import nb05_windows
from course_utils.practice.loop import twice, watch_loop

ACCUMULATE_EQUAL = Exercise(
    "accumulate_equal",
    "04_accumulation",
    watch_loop,
    nb05_windows.solution,
    cases=[
        *(twice((2,) * 4 * n, n) for n in (2, 4, 3, 1)),  # 1/3 is the first share that a few digits do not hold
        twice((2,) * 4, 2, dirty=True),
        *(twice((4,) * 8, n, real=True) for n in (2, 4)),
    ],
)
