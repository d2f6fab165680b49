"""The exercise of notebook 03: the positions of a loop that never zeroes."""

from collections.abc import Callable

from course_utils.practice.bench import Exercise, Seen, edits, numbers


def solution(gradients, lr):
    w = 0.0
    in_grad = 0.0
    positions = []
    for gradient in gradients:
        in_grad += gradient
        w -= lr * in_grad
        positions.append(w)
    return positions


def watch(answer: Callable, case: tuple[list[float], float]) -> Seen:
    gradients, lr = case
    given, what = list(gradients), "a list with the position after each update"
    got = numbers(answer(given, lr), len(gradients), what)
    how = "" if given == gradients else f"the list of gradients that your function was given is {given} afterwards"
    return {"positions": got, "input": how}


ADD, MOVE, RETURN = "in_grad += gradient", "w -= lr * in_grad", "return positions"
FORGOTTEN = Exercise(
    "forgotten",
    "03_forgetting",
    watch,
    solution,
    cases=[([2.0, -1.0, 0.5, -3.0, 4.0], 0.25), ([2**-9, 1.0, -(2**-8)], 0.5), ([3.0], 2.0), ([], 0.1)],
    edits=[
        *edits("zeroed", ADD, "in_grad = gradient"),
        *edits("uphill", MOVE, "w += lr * in_grad"),
        *edits("off-by-one", RETURN, "return [0.0, *positions]", "return [0.0, *positions[:-1]]"),
        *edits("last-only", RETURN, "return positions[-1:] * len(positions)"),
        *edits("decays", ADD, "in_grad = 0.9 * in_grad + gradient", "in_grad = 0.5 * in_grad + gradient"),
        *edits("decays/mean", MOVE, "w -= lr * in_grad / (len(positions) + 1)"),
    ],
)
