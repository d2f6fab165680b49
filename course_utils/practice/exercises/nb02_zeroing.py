"""The exercise of notebook 02: a training loop with one update per batch, from any start."""

from collections.abc import Callable

from course_utils.practice.exercises import exercise
from course_utils.practice.updates import judge_loop


@exercise(
    "train",
    hints={
        "stale-gradients": "If it begins with update 2, a call is missing from your loop. If it is the first update, "
        "what can be in `.grad` before your first backward pass?",
        "discarded-gradients": "What comes between your `backward()` and your `step()`? Look at the lower ledger "
        "above.",
    },
)
def _train(answer: Callable) -> str:
    judge_loop(lambda *loop: answer(*loop[:4]), n_values=(1,))
    return "a clean and a dirty start, 2 epochs, SGD and Adam: every update holds its own batch and nothing else."
