"""The exercise of notebook 05 that puts the lines of an accumulation loop in order."""

from course_utils.practice.exercises import EXERCISES, exercise
from course_utils.practice.ordering import judge_order

LINES = {  # as the notebook shows them
    "A": "optimizer.step()",
    "B": "if i % n == 0:",
    "C": "loss_fn(model, batch).backward()",
    "D": "for i, batch in enumerate(batches):",
    "E": "(loss_fn(model, batch) / n).backward()",
    "F": "optimizer.zero_grad()",
    "G": "if (i + 1) % n == 0:",
}
_MAKES = {"i": "D", "batch": "D"}  # the line that makes each name


@exercise(
    "order_the_window",
    notebook="05_windows",
    takes=(str, list, tuple),
    hints={
        "no-loop": "Which line makes everything after it happen once for each micro-batch?",
        "nested-loop": "One pass over the micro-batches is enough: how often does the loop inside the loop run?",
        "used-too-early": "Which line makes `i` and `batch`, and which of your lines comes before it?",
        "idle-line": "Cover each line in turn. Does anything change without it?",
        "stale-gradients": "A line may be used twice. What is in `.grad` before the first window, and after a step?",
        "discarded-gradients": "Who else runs every time your zeroing does? It belongs to the update.",
        "irregular-window": "With n = 4, for which `i` is each of the two tests true? `i` begins at 0.",
        "loss-scale": "A full window has n micro-batches with a mean loss each. What should they add up to?",
    },
)
def _order_the_window(answer: str | list | tuple) -> str:
    order = judge_order(
        answer,
        LINES,
        "def accumulate(model, batches, loss_fn, optimizer, n):",
        EXERCISES["accumulate_equal"].judge,
        _MAKES,
    )
    return f"{order} ran with N = 1, 2, 3 and 4, also with old gradients: every update holds its own window."
