"""The exercise of notebook 04: accumulation over full windows of equal micro-batches."""

from collections.abc import Callable

from course_utils.practice.exercises import exercise
from course_utils.practice.updates import judge_loop_on_model, judge_updates, sgd


@exercise(
    "accumulate_equal",
    hints={
        "loss-scale": "Is each sample's weight too large, or too small? Count your divisions, and see Steps 1 and 7.",
        "low-precision": "1/N needs all its digits. Which line rounds it, or computes it in a short type?",
        "discarded-gradients": "Zeroing belongs to the update. How often does your loop zero within one window?",
        "wrong-value": "Every sample counts as it should. What else does your loop do to .grad, or to the weights?",
        "irregular-window": "Print the numbers of the micro-batches after which you step. With N = 4: 4, 8, 12.",
        "stale-gradients": "Is anything cleared after a step, and before the first window?",
    },
)
def _accumulate_equal(answer: Callable) -> str:
    for n in (2, 4, 3, 1):  # 1/3 is the first share that a few digits do not hold
        judge_updates(answer, (2,) * 4 * n, n)
    judge_updates(answer, (2, 2, 2, 2), 2, dirty=True)
    for n in (2, 4):
        judge_loop_on_model(answer, sgd, n, sizes=(4,) * 8)
    return (
        "N = 1, 2, 3 and 4, with and without old gradients, on a model that counts samples and on a real one: every "
        "window is the large batch."
    )
