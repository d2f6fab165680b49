"""The exercise of notebook 02: a training loop with one update per batch, from any start."""

from collections.abc import Callable

from course_utils.practice.exercises import exercise
from course_utils.practice.updates import judge_loop


@exercise(
    "train",
    hints={
        "not-attempted": "Does each call end with its parentheses, `()`? And is each one inside the loop, indented as "
        "far as the line above it?",
        "stale-gradients": "If it begins with update 2, a call is missing from your loop. If it is the first update, "
        "what can be in `.grad` before your first backward pass?",
        "discarded-gradients": "What comes between your `backward()` and your `step()`?",
        "leftover-gradients": "The gradients are there, and no weight has moved. Which call moves the weights, and "
        "does it run for every batch?",
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
        "low-precision": "Print the dtype of the model, of the loss and of `.grad`. Which line changes it, or rounds?",
        "wrong-value": "As long as the weights stay put, your updates are right. Does each forward pass see the "
        "weights of the last update? And does anything besides the four calls change the model or the optimizer?",
    },
)
def _train(answer: Callable) -> str:
    judge_loop(lambda *loop: answer(*loop[:4]), n_values=(1,))
    return "with and without old gradients, 2 epochs, SGD and Adam: every update holds its own batch and nothing else."
