"""The exercise of notebook 03: the positions of a loop that never zeroes."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, close, compare, lost_digits, numbers, read_all, rounded


@exercise(
    "forgotten",
    hints={
        "zeroed": "Two things are running totals here: what is in `.grad`, and the position.",
        "decays": "You have a momentum below 1, or a mean. Which line of the colleague's loop would make an old "
        "gradient smaller?",
        "off-by-one": "Go through the first update by hand: backward, then step. Is the first gradient in `.grad` when "
        "the first step reads it? And is the start a position after an update?",
        "uphill": "With a positive gradient, the loss gets smaller to the left. What does SGD do with the sign?",
        "last-only": "A list of tensors holds the tensors, not the numbers that they held at the time. What happens to "
        "a tensor that `step()` changes in place?",
        "changed-input": "The list of gradients belongs to the caller. Which line of yours writes to it or empties it?",
        "low-precision": "Which line rounds, or makes whole numbers? Return the positions with all the digits that "
        "they have.",
        "wrong-type": "Return one list with a number for each update, in their order.",
        "wrong-value": "Work out the first two updates by hand: what is in `.grad`, and by how much does the weight "
        "move?",
    },
)
def _forgotten(answer: Callable) -> str:
    cases = (([2.0, -1.0, 0.5, -3.0, 4.0], 0.25), ([2**-9, 1.0, -(2**-8)], 0.5), ([3.0], 2.0), ([], 0.1))
    for gradients, lr in cases:
        right = [-lr * total for total in accumulate(accumulate(gradients))]
        got = _positions(answer, gradients, lr)
        case = f"fresh gradients {gradients}, lr = {lr}: expected {_shown(right)}, got {_shown(got)}"
        zeroed = [-lr * total for total in accumulate(gradients)]
        known = (
            ("zeroed", "these are the positions of a loop that zeroes", zeroed),
            ("zeroed", "these are the moves of a correct loop, not the positions", [-lr * g for g in gradients]),
            ("uphill", "an update goes against the gradient, so the sum is subtracted", [-w for w in right]),
            ("off-by-one", "the start is no update; the first position is the one after update 1", [0.0, *right]),
            ("off-by-one", "backward() comes before step(), so the fresh gradient is in the sum", [0.0, *right[:-1]]),
            ("off-by-one", "the last update is missing", right[:-1]),
            ("off-by-one", "the first update is missing", right[1:]),
            ("last-only", "every entry is the last position, as of one tensor that moves on", right[-1:] * len(right)),
            *lost_digits(got, right),
        )
        try:
            compare(got, right, case, known)
        except Mistake as mistake:
            raise _decays(answer, case) if mistake.verdict.bug == "wrong-value" else mistake from None
    return "5, 3, 1 and 0 updates: each one uses the sum of all gradients so far, in full."


def _decays(answer: Callable, case: str) -> Mistake:
    """Whether old gradients fade in some way, seen from how the answer moves after a single gradient."""
    path = [0.0, *_positions(answer, [1.0, 0.0, 0.0, 0.0, 0.0], 1.0)]
    moves = [before - after for before, after in pairwise(path)]
    if (
        len(moves) != 5
        or not close(moves[0], 1.0)
        or not 0 <= moves[1] <= 1
        or not all(0 <= move < 1 for move in moves[2:])
    ):
        return Mistake("wrong-value", f"{case}.")
    hint = "nothing takes an old gradient out of .grad, so it counts in full in every later update"
    return Mistake("decays", f"{case}. After the gradients 1, 0, 0, 0, 0 it moves by {rounded(moves)}: {hint}.")


def _positions(answer: Callable, gradients: Sequence[float], lr: float) -> list[float]:
    what, given = "a list with the position after each update", list(gradients)
    got = answer(given, lr)
    if isinstance(got, (set, dict)):
        raise Mistake("wrong-type", f"expected {what}, got a {type(got).__name__}.")
    got = numbers(read_all(got, at_most=len(gradients) + 2), len(gradients), what)
    if given != gradients:
        hint = f"the list of gradients {gradients} that your function was given is {given} afterwards"
        raise Mistake("changed-input", f"{hint}: it should stay as it is.")
    return got


def _shown(positions: Sequence[float]) -> list[float]:
    return [float(f"{w:.8g}") for w in positions]
