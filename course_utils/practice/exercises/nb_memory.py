"""The exercise of *memory*: a training loop that logs the loss of each window."""

import copy
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch
from torch import nn

from course_utils.loops import windows
from course_utils.models import mlp
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, close, number, numbers, read_all, rounded
from course_utils.practice.updates import (
    compare_losses,
    judge_loop_on_models,
    judge_loop_on_tallies,
    losses_of_large_batches,
    random_batches,
    sgd,
    squared_error,
)


@exercise(
    "logged_loss",
    hints={
        "per-micro-batch": "You log inside the inner loop. A window is one update, so it gets one number.",
        "last-only": "You log the variable that the inner loop leaves behind. Step 8: which micro-batch is that?",
        "divided-by-n": "Do you divide by N where the window holds fewer, or divide what has been divided already?",
        "not-divided": "Do you add up the losses from before the weighting, or from after it? Compare Step 8.",
        "token-weights": "A micro-batch of 6 samples and one of 2 count the same in your mean. Should they?",
        "not-reset": "The sum of one window goes on into the next. Where does it begin at zero?",
        "held-graphs": "Memory: Step 4 counts what one backward() per window holds, and what a kept loss holds.",
        "whole-epoch": "Which micro-batches does the number of a window depend on? Only its own should matter.",
        "first-only": "How many numbers of a window go into the log, and where is the rest lost?",
        "largest-only": "A mean uses every loss of its window. What does your function keep of the others?",
        "smoothed": "The number of a window may depend on that window alone. What is carried over?",
        "wrong-order": "The first number belongs to the first window. In which order do you collect them?",
    },
)
def _logged_loss(answer: Callable) -> str:
    def loop(*arguments) -> None:
        list(answer(*arguments))

    for sizes, n in (((4, 4, 4, 4), 2), ((4, 4, 4), 2), ((6, 2), 2), ((6, 2, 1), 2), ((2, 3, 1, 4, 2), 4)):
        _judge_log(answer, loop, sizes, n)
    judge_loop_on_tallies(loop, n_values=(2, 4, 1, 100), dirty=False)
    for n in (2, 1):
        _judge_log_while_learning(answer, n)
    judge_loop_on_models(loop, n_values=(2, 4, 1, 100))
    return (
        "equal, short and ragged windows, fixed weights and weights that learn: the loss that is logged is the mean "
        "over the samples of its window, and the model is trained as by large batches."
    )


def _judge_log(answer: Callable, loop: Callable, sizes: Sequence[int], n: int) -> None:
    """Without learning, so that the loss of every micro-batch is known: all its samples have the same."""
    losses = [1.2345678 * factor for factor in (25, 5, 1, 125, 0.2)][
        : len(sizes)
    ]  # of two, the larger first, then last
    batches = [torch.full((size,), loss, dtype=torch.float64) for size, loss in zip(sizes, losses, strict=True)]
    groups = list(windows(list(zip(losses, sizes, strict=True)), n))
    right = [sum(loss * size for loss, size in group) / sum(size for _, size in group) for group in groups]
    model = nn.Linear(1, 1, bias=False).double()
    optimizer, steps = torch.optim.SGD(model.parameters(), lr=0.0), []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    logged = _logged(answer, model, batches, lambda m, batch: batch.mean() + 0 * m.weight.sum(), optimizer, n)
    got = [number(loss) for loss in logged]
    case = f"micro-batches of {list(sizes)} samples, N = {n}: expected {rounded(right)}, got {rounded(got)}"
    if len(got) == len(batches) != len(right):
        raise Mistake("per-micro-batch", f"{case}. Return one number per update, not one per micro-batch.")
    if len(got) != len(right) == len(steps):
        raise Mistake("wrong-length", f"{case}. There are {len(right)} updates; return one number for each.")
    if len(got) != len(right):
        judge_loop_on_tallies(loop, n_values=(2,), dirty=False)
        bug = "leftover-gradients" if len(got) < len(right) else "irregular-window"
        raise Mistake(bug, f"{case}. Updates: {len(steps)}, expected {len(right)}.")

    def each(log: Callable[[list[float]], float]) -> list[float]:
        return [log([loss for loss, _ in group]) for group in groups]

    since_start = [total / count for count, total in enumerate(accumulate(right), start=1)]
    whole = sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / sum(sizes)
    known = (
        ("token-weights", "small micro-batches count like large ones", each(lambda own: sum(own) / len(own))),
        ("last-only", "it is the loss of the last micro-batch alone", each(lambda own: own[-1])),
        ("last-only", "it is the last micro-batch's loss after its weighting", each(lambda own: own[-1] / n)),
        ("first-only", "it is the loss of the first micro-batch alone", each(lambda own: own[0])),
        ("largest-only", "it is the largest loss of a micro-batch", each(max)),
        ("not-reset", "what was added up for the windows before is still in it", since_start),
        ("not-reset", "the sum goes on from one window into the next", list(accumulate(right))),
        ("divided-by-n", "a short window is divided by N, not by its count", each(lambda own: sum(own) / n)),
        ("divided-by-n", "the loss has been divided by N twice", each(lambda own: sum(own) / n**2)),
        ("divided-by-n", "the loss has been divided by N once more", [loss / n for loss in right]),
        ("not-divided", "the losses are added but not averaged", each(sum)),
        (
            "not-divided",
            "these are sums over the samples, not means",
            [sum(loss * size for loss, size in group) for group in groups],
        ),
        ("whole-epoch", "every number is the mean over the whole epoch", [whole] * len(right)),
        ("wrong-order", "every number belongs to the window before", [0.0, *right[:-1]]),
        ("wrong-order", "the losses come in reverse order", right[::-1]),
        ("smoothed", "every number is mixed with those before it", got if _is_smoothed(got, right) else []),
    )
    compare_losses(logged, right, case, known, "wrong-value", "it should be the mean loss over the samples of a window")
    if not steps:
        raise Mistake("missing-backward", f"{case}: the losses are right, but no step has run: train the model, too.")


def _is_smoothed(got: list[float], right: list[float]) -> bool:
    """Whether every number lies between the one before it and the loss of its window."""
    between = (min(a, loss) < b < max(a, loss) for (a, b), loss in zip(pairwise(got), right[1:], strict=True))
    return len(got) > 1 and close(got[0], right[0]) and all(between)


def _judge_log_while_learning(answer: Callable, n: int) -> None:
    """With learning, so that a loss at other weights is another number."""
    batches = random_batches((4, 4, 2, 3))
    ours = mlp(3, 5, 2).double()
    theirs = copy.deepcopy(ours)
    groups = [torch.cat(window) for window in windows(batches, n)]
    right, known = losses_of_large_batches(ours, sgd(ours.parameters()), groups, squared_error)
    logged = _logged(answer, theirs, batches, squared_error, sgd(theirs.parameters()), n)
    case = f"while the model learns, N = {n}: expected {rounded(right)}, got {rounded([number(x) for x in logged])}"
    hint = "take the loss of a micro-batch from the forward pass that its gradient comes from"
    compare_losses(logged, right, case, known, "wrong-weights", hint)


def _logged(answer: Callable, model: nn.Module, batches: Sequence, *rest: object) -> list:
    """What the answer returned, once it has turned out to be a list of numbers."""
    result = answer(model, list(batches), *rest)
    result = result if isinstance(result, dict) else read_all(result, at_most=len(batches) + 2)
    numbers(result, 1, "a list of losses, one per update")
    return result
