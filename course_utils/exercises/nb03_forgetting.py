"""The exercise of notebook 03: the positions of a loop that never zeroes."""

from course_utils.exercises.judging import CHANGED_INPUT, Mistake, exercise, numbers, same

CASES = ([2.0, -1.0, 0.5, -3.0, 4.0], 0.25), ([2**-9, 1.0, -(2**-8)], 0.5), ([3.0], 2.0), ([], 0.1)
BY_HAND = "Work out the first two updates by hand: what is in `.grad`, and by how much does the weight move?"


def positions(gradients, lr, kept=1.0, mean=False):
    """The position after each update; `kept` is how much of `.grad` each one leaves."""
    w, in_grad, found = 0.0, 0.0, []
    for k, gradient in enumerate(gradients, start=1):
        in_grad = kept * in_grad + gradient
        w -= lr * in_grad / (k if mean else 1)
        found.append(w)
    return found


@exercise
def forgotten(answer):
    for gradients, lr in CASES:
        given, right = list(gradients), positions(gradients, lr)
        got = numbers(answer(given, lr), len(right), "a list with the position after each update")
        decays = (
            "nothing takes an old gradient out of .grad, so it counts in full in every later update",
            (
                "You have a momentum below 1, or a mean. Which line of the colleague's loop would make an old gradient "
                "smaller?"
            ),
        )
        same(f"{gradients, lr}: positions", got, right, ("wrong-value", "", BY_HAND), wrong=[
            ("zeroed", positions(gradients, lr, kept=0.0), "these are the positions of a loop that zeroes",
             "Two things are running totals here: what is in `.grad`, and the position."),
            ("uphill", positions(gradients, -lr), "an update goes against the gradient, so the sum is subtracted",
             "With a positive gradient, the loss gets smaller to the left. What does SGD do with the sign?"),
            *(("off-by-one", wrong, "the first position is the one after update 1",
               "Is the first gradient in `.grad` when the first step reads it? And is the start a position after an "
               "update?") for wrong in ([0.0, *right], [0.0, *right[:-1]])),
            ("last-only", right[-1:] * len(right), "every entry is the last position, as of one tensor that moves on",
             "A list of tensors holds the tensors, not the numbers that they held at the time. What happens to a "
             "tensor that `step()` changes in place?"),
            *(("decays", positions(gradients, lr, **how), *decays)
              for how in ({"kept": 0.9}, {"kept": 0.5}, {"mean": True})),
        ])  # fmt: skip
        if given != gradients:
            bug, _, hint = CHANGED_INPUT
            raise Mistake(bug, f"all else is right, but the list of gradients is {given} afterwards.", hint)
    return "5, 3, 1 and 0 updates: each one uses the sum of all gradients so far, in full."
