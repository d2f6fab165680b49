"""The exercise of *should you accumulate*: a comparison of batch sizes that is fair."""

from collections.abc import Mapping
from math import inf, log2, nan

from course_utils.exercises.judging import exercise, not_attempted, number, numbers, same, wrong_type

SAMPLES, GRID = 1024, (2**-7, 2**-6, 2**-5, 2**-4)
CASES = {  # for each batch log2 of its best learning rate; log2 of the learning rate from which on runs diverge
    "the best values lie inside the grid": ({8: -6, 64: -5}, inf),
    "a best value lies below the grid": ({4: -10, 64: -5}, inf),
    "a best value lies above the grid": ({16: -6, 512: -2}, inf),
    "large learning rates diverge": ({8: -5, 64: -6}, -4),
    "all learning rates of the grid diverge": ({8: -9, 64: -10}, -7),
}
EQUAL = "equal-updates", "", "How many samples does each run read, and how many may it read?"
NAN = "nan-is-best", "", "Compare something with NaN: what do `<`, `min` and `argmin` say?"


@exercise
def compare_batches(answer):
    for case, (bottoms, limit) in CASES.items():
        read = set()

        def run(batch, lr, bottoms=bottoms):
            """The loss is a bowl over log2 of the learning rate."""
            return [lr, 2 + log2(batch) / 10 + 0.05 * (log2(lr) - bottoms[batch]) ** 2]

        def train(batch, updates, lr, read=read, run=run, limit=limit):
            read.add(number(batch) * number(updates))
            return run(batch, number(lr))[1] if log2(lr) < limit else nan

        found = answer(train, SAMPLES, list(bottoms), list(GRID))
        if not read:
            raise not_attempted("`train` was not called.")
        if not isinstance(found, Mapping) or not found.keys() >= bottoms.keys():
            raise wrong_type(f"expected a dictionary with entries for {[*bottoms]}, got {found!r:.200}.")
        same(f"{case}: samples that a run reads", sorted(read), [SAMPLES], EQUAL)
        best = {batch: 2.0 ** min(bottom, limit - 1) for batch, bottom in bottoms.items()}
        for batch in bottoms:
            lr, loss = numbers(found[batch], 2, "a learning rate and its loss")
            about = f"{case}: batches of {batch}, the learning rate and its loss"
            same(f"{about}, diverged", loss != loss, False, NAN)
            end = run(batch, min(max(best[batch], GRID[0]), GRID[-1]))
            same(about, [lr, loss], run(batch, best[batch]), wrong=[
                ("stops-at-the-end", end, "", "The grid ends there. What do you know about its other side?"),
                *(("one-learning-rate", run(batch, other), "that is another batch's best learning rate",
                   "Which learning rate suits this batch?") for other in best.values()),
            ])  # fmt: skip
    return "best values inside, below and above the grid, and runs that diverge; all at equal samples."
