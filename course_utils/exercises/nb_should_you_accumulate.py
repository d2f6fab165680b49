"""The exercise of *should you accumulate*: a comparison of batch sizes that is fair."""

from collections.abc import Callable, Mapping
from math import inf, isnan, log2, nan

from course_utils.exercises.bench import Exercise, Mistake, Seen, edits, number, numbers

SAMPLES, GRID = 1024, (2**-7, 2**-6, 2**-5, 2**-4)
CASES = {  # for each batch log2 of its best learning rate; log2 of the learning rate from which on runs diverge
    "the best values lie inside the grid": ({8: -6, 64: -5}, inf),
    "a best value lies below the grid": ({4: -10, 64: -5}, inf),
    "a best value lies above the grid": ({16: -6, 512: -2}, inf),
    "large learning rates diverge": ({8: -5, 64: -6}, -4),
    "all learning rates of the grid diverge": ({8: -9, 64: -10}, -7),
}


def solution(train, samples, batches, grid):
    found = {}
    for batch in batches:
        losses = {}
        to_try = list(grid)
        while to_try:
            for lr in to_try:
                loss = train(batch, samples // batch, lr)
                losses[lr] = float("inf") if loss != loss else loss
            best = min(losses, key=losses.get)
            to_try = []
            if best == min(losses):
                to_try = [best / 2]
            elif best == max(losses):
                to_try = [best * 2]
        found[batch] = best, losses[best]
    return found


def watch(answer: Callable, case: str) -> Seen:
    """Watches the samples that the runs read, and each batch's learning rate and loss."""
    (bottoms, limit), read = CASES[case], set()

    def train(batch: int, updates: int, lr: float) -> float:
        """Stands for training: the loss is a bowl over log2 of the learning rate."""
        read.add(number(batch) * number(updates))
        place = log2(number(lr))
        return 2 + log2(batch) / 10 + 0.05 * (place - bottoms[batch]) ** 2 if place < limit else nan

    found = answer(train, SAMPLES, list(bottoms), list(GRID))
    if not read:
        raise Mistake("not-attempted", "`train` was not called.")
    if not isinstance(found, Mapping) or not found.keys() >= bottoms.keys():
        raise Mistake("wrong-type", f"expected a dictionary with entries for {[*bottoms]}, got {found!r:.200}.")
    pairs = {batch: numbers(found[batch], 2, "a learning rate and its loss") for batch in bottoms}
    return {
        "samples that a run reads": sorted(read),
        "batches whose best run diverged": [batch for batch in bottoms if any(map(isnan, pairs[batch]))],
        **{f"batches of {batch}, the learning rate and its loss": pair for batch, pair in pairs.items()},
    }


LAST = "found[batch] = best, losses[best]"
OTHER = "best = [*found.values(), (best,)][0][0]\nfound[batch] = best, train(batch, samples // batch, best)"
COMPARE_BATCHES = Exercise(
    "compare_batches",
    "should_you_accumulate",
    watch,
    solution,
    cases=[*CASES],
    edits=[*edits("stops-at-the-end", "to_try = []", "break"), *edits("one-learning-rate", LAST, OTHER)],
    channels={"samples that a run reads": "equal-updates", "batches whose best run diverged": "nan-is-best"},
)
