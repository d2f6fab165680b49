"""The exercise of notebook 00: a training loop, in the words of that notebook, which knows batches only."""

from collections.abc import Callable

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake
from course_utils.practice.updates import judge_loop


@exercise(
    "first_loop",
    hints={
        "not-attempted": "Does each call end with its parentheses, `()`? And is each one inside the loop, indented as "
        "far as the line above it?",
        "stale-gradients": "The gradient of an earlier batch is in a later update. Which of our two loops did that, "
        "and which line was missing there?",
        "leftover-gradients": "The gradients are there, and no weight has moved. Which call moves the weights?",
        "empty-step": "A step found nothing in `.grad`. Which call fills it, and does it come before the step?",
        "discarded-gradients": "A step found nothing in `.grad`, although `backward()` had filled it. In which order "
        "are the calls in our loop?",
    },
)
def _first_loop(answer: Callable) -> str:
    try:
        # What .grad held before the call is asked in notebook 02.
        judge_loop(lambda *loop: answer(*loop[:4]), n_values=(1,), dirty=False)
    except Mistake as mistake:
        bug, message = mistake.verdict.bug, mistake.verdict.message.replace("micro-batch", "batch")
        raise Mistake(bug, "no backward pass and no step has run yet." if bug == "not-attempted" else message) from None
    return "equal batches and unequal ones, two optimizers: every update holds its own batch and nothing else."
