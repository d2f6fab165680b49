"""The exercise of notebook 00: a training loop, in the words of that notebook, which knows batches only."""

import re
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
        "leftover-gradients": "The gradients are there, and no weight has moved. Which call moves the weights, and "
        "does it run for every batch?",
        "empty-step": "A step found nothing in `.grad`. Which call fills it, and does it come before the step?",
        "discarded-gradients": "A step found nothing in `.grad`, although `backward()` had filled it. In which order "
        "are the calls in our loop?",
        "irregular-window": "Count the steps and the batches: each batch should have one step. Is a call outside the "
        "loop, or twice in it?",
        "not-reset": "The first batch gets its step. What is different for the second one?",
        "loss-scale": "Each update should use the gradient as `backward()` left it. What changes the loss, or `.grad`, "
        "before the step?",
        "wrong-batches": "Print the number of the batch in every round of your loop. Are they all there, in "
        "their order?",
        "changed-input": "The list of batches belongs to the caller, who uses it again. Which line of yours writes to "
        "it or empties it?",
        "held-graphs": "Which argument of `backward()` keeps the forward pass in memory, and is it needed here?",
        "low-precision": "Print the type of the loss and of `.grad`. Which line changes it, or rounds?",
        "wrong-value": "As long as the weights stay put, your updates are right. Does each forward pass see the "
        "weights of the last update? And does anything besides the three calls change the model or the optimizer?",
    },
)
def _first_loop(answer: Callable) -> str:
    try:
        # What .grad held before the call is asked in notebook 02.
        judge_loop(lambda *loop: answer(*loop[:4]), n_values=(1,), dirty=False)
    except Mistake as mistake:
        bug, message = mistake.verdict.bug, mistake.verdict.message.replace("micro-batch", "batch")
        message = re.sub(
            r"since the check runs two epochs of (\d+)", r"since the check runs it twice over \1 batches", message
        )
        message = message.replace("window of an epoch, batches", "batch of an epoch,").replace("window", "batch")
        raise Mistake(bug, "no backward pass and no step has run yet." if bug == "not-attempted" else message) from None
    return "equal batches and unequal ones, two optimizers: every update holds its own batch and nothing else."
