"""The exercise of notebook 03b: accumulation over windows that may be short, of micro-batches of any size."""

from collections.abc import Callable

from course_utils.practice.exercises import exercise
from course_utils.practice.updates import judge_loop


@exercise(
    "accumulate",
    hints={
        "leftover-gradients": "The last window is short and never gets its step. Does your loop test for something "
        "that a short window never reaches?",
        "loss-scale": "Look at the factor. If full windows are right and the last one is wrong, you divide by n where "
        "you should divide by what the window holds.",
        "token-weights": "Your micro-batches count equally, but they are not equally large. What share of the window's "
        "samples does each hold?",
        "irregular-window": "The first window is too short, or every micro-batch gets a step of its own. Do you count "
        "from 0 or from 1?",
        "held-graphs": "Your updates are right, but you call `backward()` once for the whole window, and so keep the "
        "activations of all its micro-batches.",
    },
)
def _accumulate(answer: Callable) -> str:
    judge_loop(answer, n_values=(2, 4, 1, 100))
    return (
        "N = 1, 2, 4 and longer than the epoch, short windows, ragged micro-batches, a dirty start, SGD and Adam: "
        "every sample counts as in the large batch."
    )
