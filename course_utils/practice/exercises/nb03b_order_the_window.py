"""The exercise of notebook 03b that puts the lines of an accumulation loop in order."""

from course_utils.practice.exercises import EXERCISES, exercise
from course_utils.practice.judging import Mistake
from course_utils.practice.ordering import assemble, idle_lines, letters

LINES = {  # as the notebook shows them
    "A": "optimizer.step()",
    "B": "if i % n == 0:",
    "C": "loss_fn(model, batch).backward()",
    "D": "for i, batch in enumerate(batches):",
    "E": "(loss_fn(model, batch) / n).backward()",
    "F": "optimizer.zero_grad()",
    "G": "if (i + 1) % n == 0:",
}
_OPENS = "D"


@exercise(
    "order_the_window",
    notebook="03b_windows",
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
    order = letters(answer, LINES)
    if _OPENS not in order:
        raise Mistake("no-loop", f"no line of {' '.join(order)} repeats anything.")
    if order.count(_OPENS) > 1:
        raise Mistake("nested-loop", f"line {_OPENS} opens a second loop inside the first.")
    _judge_order(order)
    if idle := idle_lines(order, _judge_order):
        what = f"{'lines' if len(idle) > 1 else 'line'} {', '.join(idle)}"
        raise Mistake("idle-line", f"every update is right, but so it is without {what}: leave out what does nothing.")
    return f"{' '.join(order)} ran with N = 1, 2, 3 and 4, also with old gradients: every update holds its own window."


def _judge_order(order: str) -> None:
    try:
        EXERCISES["accumulate_equal"].judge(
            assemble("def accumulate(model, batches, loss_fn, optimizer, n):", LINES, order)
        )
    except (NameError, UnboundLocalError) as error:
        name = error.name or str(error).split("'")[1]
        early = next(letter for letter in order if name in LINES[letter])
        message = f"line {early}, `{LINES[early]}`, uses `{name}` before line {_OPENS} has made it."
        raise Mistake("used-too-early", message) from None
