"""The exercise of notebook 03: accumulation over full windows of equal micro-batches."""

from collections.abc import Callable

from course_utils.practice.exercises import exercise
from course_utils.practice.updates import judge_loop_on_model, judge_updates, sgd


@exercise(
    "accumulate_equal",
    hints={
        "loss-scale": "The factor in the message is N, or one over N. Count how often you divide, and what.",
        "discarded-gradients": "A micro-batch is missing from its window. Zeroing belongs to the update, not to the "
        "micro-batch.",
        "irregular-window": "Print the numbers of the micro-batches after which you step. With N = 4 they should be 4, "
        "8, 12.",
        "stale-gradients": "Either nothing is cleared after the step, or the model's old gradients entered the first "
        "window.",
    },
)
def _accumulate_equal(answer: Callable) -> str:
    for n in (2, 4, 1):
        judge_updates(answer, (2,) * 4 * n, n)
    judge_updates(answer, (2, 2, 2, 2), 2, dirty=True)
    for n in (2, 4):
        judge_loop_on_model(answer, sgd, n, sizes=(4,) * 8)
    return "N = 1, 2 and 4, a clean and a dirty start, a tally and a real model: every window is the large batch."
