"""The exercise of notebook 05: accumulation over windows that may be short, of micro-batches of any size."""

from collections.abc import Callable

from course_utils.practice.exercises import exercise
from course_utils.practice.updates import judge_loop


@exercise(
    "accumulate",
    hints={
        "leftover-gradients": "The last window may be short. Which condition in your loop isn't met then?",
        "loss-scale": "By what do you multiply each loss? Over one window these factors should add up to 1.",
        "token-weights": "Your micro-batches don't count in proportion to their sizes: see Step 6.",
        "wrong-value": "Every sample counts as it should. What else does your loop do to .grad, or to the weights?",
        "irregular-window": "Print the index at which you step. Do you count from 0 or from 1?",
    },
)
def _accumulate(answer: Callable) -> str:
    judge_loop(answer, n_values=(2, 4, 1, 100))
    return (
        "N = 1, 2, 4 and more than an epoch has, short windows, unequal micro-batches, old gradients, SGD and Adam: "
        "every sample counts as in the large batch."
    )
