"""The exercise of notebook 02 that puts the lines of a loop in order."""

from course_utils.practice.exercises import EXERCISES, exercise
from course_utils.practice.judging import Mistake
from course_utils.practice.ordering import assemble, idle_lines, letters

LINES = {  # as the notebook shows them
    "A": "optimizer.zero_grad",
    "B": "loss.backward()",
    "C": "for batch in batches:",
    "D": "optimizer.step()",
    "E": "loss.grad = None",
    "F": "loss = loss_fn(model, batch)",
    "G": "optimizer.zero_grad()",
}
_OPENS, _MAKES = "C", {"batch": "C", "loss": "F"}  # the line that makes each name


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
    order = letters(answer, LINES)
    if _OPENS not in order:
        raise Mistake("no-loop", f"no line of {' '.join(order)} repeats anything.")
    if order.count(_OPENS) > 1:
        raise Mistake("nested-loop", f"line {_OPENS} opens a second loop inside the first.")
    _judge_order(order)
    if idle := idle_lines(order, _judge_order):
        what = f"{'lines' if len(idle) > 1 else 'line'} {', '.join(idle)}"
        raise Mistake("idle-line", f"every update is right, but so it is without {what}: leave out what does nothing.")
    return f"{' '.join(order)} ran for 2 epochs, from a clean and a dirty start, and every update holds its own batch."


def _judge_order(order: str) -> None:
    try:
        EXERCISES["train"].judge(assemble("def train(model, batches, loss_fn, optimizer):", LINES, order))
    except NameError as error:
        name = error.name or str(error).split("'")[1]
        first = next(letter for letter in order if name in LINES[letter] and letter != _MAKES[name])
        hint = f"line {first}, `{LINES[first]}`, uses `{name}` before line {_MAKES[name]} has made it"
        raise Mistake("used-too-early", f"{hint}.") from None
