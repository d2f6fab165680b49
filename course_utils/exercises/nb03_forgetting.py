"""The exercise of notebook 03: the positions of a loop that never zeroes."""

from itertools import accumulate

from course_utils.exercises.judging import agree, exercise, numbers, same, unchanged

CASES = ([2.0, -1.0, 0.5, -3.0, 4.0], 0.25), ([2**-9, 1.0, -(2**-8)], 0.5), ([3.0], 2.0), ([], 0.1)
BY_HAND = "Work out the first two updates by hand: what is in `.grad`, and by how much does the weight move?"


@exercise("5, 3, 1 and 0 updates: each one uses the sum of all gradients so far, in full.")
def forgotten(answer):
    for gradients, lr in CASES:
        given, zeroed = list(gradients), [-lr * total for total in accumulate(gradients)]
        right = list(accumulate(zeroed))  # it adds all gradients so far in each update
        got = numbers(answer(given, lr), len(right), "a list with the position after each update")
        known = {"zeroed": zeroed, "off-by-one": [0.0, *right[:-1]], "uphill": [-w for w in right]}
        bug = next((bug for bug in known if agree(got, known[bug])), "wrong-value")
        same(f"{gradients, lr}: positions", got, right, bug, BY_HAND)
        unchanged(given, gradients)
