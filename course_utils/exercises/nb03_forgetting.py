"""The exercise of notebook 03: the positions of a loop that never zeroes."""

from itertools import accumulate

from course_utils.exercises.judging import CHANGED_INPUT, changed, exercise, numbers, same

CASES = ([2.0, -1.0, 0.5, -3.0, 4.0], 0.25), ([2**-9, 1.0, -(2**-8)], 0.5), ([3.0], 2.0), ([], 0.1)
BY_HAND = "Work out the first two updates by hand: what is in `.grad`, and by how much does the weight move?"


@exercise
def forgotten(answer):
    for gradients, lr in CASES:
        given, zeroed = list(gradients), [-lr * total for total in accumulate(gradients)]
        right = list(accumulate(zeroed))  # it adds all gradients so far in each update
        got = numbers(answer(given, lr), len(right), "a list with the position after each update")
        same(f"{gradients, lr}: positions", got, right, ("wrong-value", "", BY_HAND), wrong=[
            ("zeroed", zeroed, "these are the positions of a loop that zeroes", BY_HAND),
            ("off-by-one", [0.0, *right[:-1]], "the first position is the one after update 1", BY_HAND),
            ("uphill", [-w for w in right], "an update goes against the gradient", BY_HAND),
        ])  # fmt: skip
        same("input", changed(given, gradients), "", CHANGED_INPUT)
    return "5, 3, 1 and 0 updates: each one uses the sum of all gradients so far, in full."
