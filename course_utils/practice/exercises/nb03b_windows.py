"""The exercise of notebook 03b: accumulation over windows that may be short, of micro-batches of any size."""

from collections.abc import Callable

from course_utils.practice.exercises import exercise
from course_utils.practice.updates import judge_loop


@exercise("accumulate")
def _accumulate(answer: Callable) -> str:
    judge_loop(answer, n_values=(2, 4, 1, 100))
    return (
        "N = 1, 2, 4 and longer than the epoch, short windows, ragged micro-batches, a dirty start, SGD and Adam: "
        "every sample counts as in the large batch."
    )
