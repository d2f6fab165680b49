"""The exercise of *should you accumulate*: a comparison of batch sizes that is fair."""

from math import inf, log2, nan

from course_utils.exercises.judging import exercise, not_attempted, number, numbers, returned, same

SAMPLES, GRID = 1024, (2**-7, 2**-6, 2**-5, 2**-4)
CASES = {  # for each batch log2 of its best learning rate; log2 of the learning rate from which on runs diverge
    "no run diverges": ({4: -10, 64: -5, 512: -2}, inf),
    "large learning rates diverge": ({8: -5, 64: -6}, -4),
    "all learning rates of the grid diverge": ({8: -9, 64: -10}, -7),
}
HINT = "How many samples may a run read? What lies beyond an end of the grid? What do `<` and `min` say of NaN?"


@exercise("best values inside, below and above the grid, and runs that diverge; all at equal samples.")
def compare_batches(answer):
    for case, (bottoms, limit) in CASES.items():
        read = set()

        def train(batch, updates, lr, read=read, bottoms=bottoms, limit=limit):
            """The loss is a bowl over log2 of the learning rate."""
            read.add(number(batch) * number(updates))
            bowl = 2 + log2(batch) / 10 + 0.05 * (log2(number(lr)) - bottoms[batch]) ** 2
            return bowl if log2(lr) < limit else nan

        found = returned(answer(train, SAMPLES, list(bottoms), list(GRID)), "a dictionary")
        if not read:
            raise not_attempted("`train` was not called.")
        same(f"{case}: samples that a run reads", sorted(read), [SAMPLES], "equal-updates", HINT)
        for batch, bottom in bottoms.items():
            got, best = numbers(found[batch], 2, "a learning rate and its loss"), 2.0**bottom
            want = [best, train(batch, SAMPLES // batch, best)]
            same(f"{case}: batches of {batch}, the learning rate and its loss", got, want, hint=HINT)
