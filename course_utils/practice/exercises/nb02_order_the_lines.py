"""The exercise of notebook 02 that puts the lines of a loop in order."""

from course_utils.practice.exercises import EXERCISES, exercise
from course_utils.practice.ordering import judge_order

LINES = {  # as the notebook shows them
    "A": "optimizer.zero_grad",
    "B": "loss.backward()",
    "C": "for batch in batches:",
    "D": "optimizer.step()",
    "E": "loss.grad = None",
    "F": "loss = loss_fn(model, batch)",
    "G": "optimizer.zero_grad()",
}
_MAKES = {"batch": "C", "loss": "F"}  # the line that makes each name


@exercise(
    "order_the_lines",
    notebook="02_zeroing",
    takes=(str, list, tuple),
    hints={
        "no-loop": "Which line makes everything after it happen once for each batch?",
        "nested-loop": "One pass over the batches is enough: how often does the loop inside the loop run?",
        "used-too-early": "Read your order from the top, once: is every name made before a line uses it?",
        "idle-line": "Cover each line in turn. Does anything change without it? A name without brackets calls nothing.",
        "stale-gradients": "Which line empties `.grad`, and is it reached before every backward pass, also the first?",
        "discarded-gradients": "What stands between `loss.backward()` and `optimizer.step()` in your order?",
        "leftover-gradients": "Which line moves the weights, and how often is it reached?",
        "empty-step": "What fills `.grad`, and has it run when the first step does?",
        "irregular-window": "How many updates does one batch get in your order?",
        "raises": "Does one forward pass get more than one backward pass in your order?",
    },
)
def _order_the_lines(answer: str | list | tuple) -> str:
    order = judge_order(
        answer, LINES, "def train(model, batches, loss_fn, optimizer):", EXERCISES["train"].judge, _MAKES
    )
    return f"{order} ran for 2 epochs, from a clean and a dirty start, and every update holds its own batch."
