"""The exercise of notebook 03c: a training loop that logs the loss of each window."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import nn

from course_utils.loops import windows
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, compare, numbers, read_all, rounded
from course_utils.practice.updates import judge_loop


@exercise(
    "logged_loss",
    hints={
        "per-micro-batch": "You log inside the inner loop. A window is one update, so it gets one number.",
        "last-only": "You log the variable that the inner loop leaves behind. Which micro-batch is that?",
        "divided-by-n": "Something divides by N where the window holds fewer micro-batches, or divides what has been "
        "divided already.",
        "not-divided": "You add the losses before they are weighted. Add them after.",
        "token-weights": "A micro-batch of 6 samples and one of 2 count alike in your mean. How did notebook 03b "
        "weight them?",
        "not-reset": "The sum of one window goes on into the next. Where does it have to start from zero?",
        "held-graphs": "The losses are right and the memory is not: you sum the losses and call `backward()` once.",
        "leftover-gradients": "The number of updates is wrong. Does a short last window get one of its own?",
        "irregular-window": "The number of updates is wrong. Does each window get exactly one?",
    },
)
def _logged_loss(answer: Callable) -> str:
    for sizes, n in (((4, 4), 2), ((4, 4, 4, 4), 2), ((4, 4, 4), 2), ((6, 2), 2), ((6, 2, 1), 2)):
        _judge_log(answer, sizes, n)
    judge_loop(lambda *loop: list(answer(*loop)), n_values=(2, 4, 1, 100), dirty=False)
    return (
        "equal, short and ragged windows: the loss that is logged is the mean over the samples of its window, and the "
        "model is trained as by large batches."
    )


def _judge_log(answer: Callable, sizes: Sequence[int], n: int) -> None:
    """Without learning, so that the loss of every micro-batch is known: all its samples have the same."""
    losses = [1.3 * 5.0**place for place in range(len(sizes))]
    batches = [torch.full((size,), loss, dtype=torch.float64) for size, loss in zip(sizes, losses, strict=True)]
    groups = list(windows(list(zip(losses, sizes, strict=True)), n))
    right = [sum(loss * size for loss, size in group) / sum(size for _, size in group) for group in groups]
    got = _logged(answer, batches, n)
    case = f"micro-batches of {list(sizes)} samples, N = {n}: expected {rounded(right)}, got {rounded(got)}"
    if len(got) == len(batches) != len(right):
        raise Mistake("per-micro-batch", f"{case}. Return one number per update, not one per micro-batch.")
    if len(got) != len(right):
        bug = "leftover-gradients" if len(got) < len(right) else "irregular-window"
        raise Mistake(bug, f"{case}. The number of updates is not right.")

    def each(log: Callable[[list[float]], float]) -> list[float]:
        return [log([loss for loss, _ in group]) for group in groups]

    known = (
        ("token-weights", "small micro-batches count like large ones", each(lambda own: sum(own) / len(own))),
        ("last-only", "it is the loss of the last micro-batch alone", each(lambda own: own[-1])),
        ("last-only", "it is the last micro-batch's loss after the division", each(lambda own: own[-1] / n)),
        ("not-reset", "the sum goes on from one window into the next", list(accumulate(right))),
        ("divided-by-n", "a short window is divided by N, not by its count", each(lambda own: sum(own) / n)),
        ("divided-by-n", "the loss has been divided by N twice", each(lambda own: sum(own) / n**2)),
        ("divided-by-n", "the loss has been divided by N once more", [loss / n for loss in right]),
        ("not-divided", "the losses are added but not averaged", each(sum)),
    )
    compare(got, right, case, known)


def _logged(answer: Callable, batches: list, n: int) -> list[float]:
    model = nn.Linear(1, 1, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    result = answer(model, list(batches), lambda model, batch: batch.mean() + 0 * model.weight.sum(), optimizer, n)
    return numbers(read_all(result, at_most=len(batches) + 2), 1, "a list of losses, one per update")
