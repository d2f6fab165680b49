"""The exercise of *should you accumulate*: a comparison of batch sizes that is fair."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan, log2, nan
from reprlib import repr

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, close, number

SAMPLES = 1024
MOST = 200  # runs in a case; a careful search takes fewer than 30


@dataclass
class Runs:
    """Stands for training: the loss is a bowl over log2 of the learning rate, and above a limit the run diverges."""

    bottoms: Mapping[int, float]  # for each batch log2 of its best learning rate
    limit: float = inf  # log2 of the learning rate from which on runs diverge
    calls: list[tuple[int, int, float]] = field(default_factory=list)

    def __call__(self, batch: int, updates: int, lr: float) -> float:
        batch, updates, lr = int(number(batch)), number(updates), number(lr)
        self.calls.append((batch, updates, lr))
        if len(self.calls) > MOST:
            raise Mistake("endless", f"`train` was called more than {MOST} times for {len(self.bottoms)} batches.")
        if batch not in self.bottoms:
            raise Mistake("other-batch", f"`train` was called with batches of {batch}, which nobody asked for.")
        return self.loss(batch, lr)

    def loss(self, batch: int, lr: float) -> float:
        if lr <= 0:
            raise Mistake("wrong-value", f"`train` was called with the learning rate {lr:g}.")
        if log2(lr) >= self.limit:
            return nan
        return 2 + log2(batch) / 10 + 0.05 * (log2(lr) - self.bottoms[batch]) ** 2

    def best(self, batch: int) -> float:
        """The best power of two, where the bowl's bottom is one and below the limit."""
        return 2.0 ** min(self.bottoms[batch], self.limit - 1)


_GRID = (2**-7, 2**-6, 2**-5, 2**-4)
_CASES = (  # what it is about, the runs, the grid
    ("the best values lie inside the grid", Runs({8: -6, 64: -5}), _GRID),
    ("a best value lies below the grid", Runs({4: -10, 64: -5}), _GRID),
    ("a best value lies above the grid", Runs({16: -6, 512: -2}), _GRID),
    ("large learning rates diverge", Runs({8: -5, 64: -6}, limit=-4), _GRID),
    ("all learning rates of the grid diverge", Runs({8: -9, 64: -10}, limit=-7), _GRID),
    ("the best value is the last that does not diverge", Runs({32: -5}, limit=-4), (2**-8, 2**-7, 2**-6, 2**-5)),
)


@exercise(
    "compare_batches",
    hints={
        "equal-updates": "How many samples does each run read, and how many may it read?",
        "one-learning-rate": "Does the batch of 64 get the learning rate that suits it, or the one of the other batch?",
        "stops-at-the-end": "Where is the best value in the grid? What do you know about its other side?",
        "nan-is-best": "Compare something with NaN: what do `<`, `min` and `argmin` say?",
        "not-the-loss": "Each batch's entry is a pair: the learning rate, then the loss there.",
        "other-batch": "Its first argument is the batch, its second the number of updates.",
        "endless": "When is the best value no longer at an end? A run that diverged is a neighbour, too.",
    },
)
def _compare_batches(answer: Callable) -> str:
    for about, training, grid in _CASES:
        runs = replace(training, calls=[])
        found = answer(runs, SAMPLES, list(runs.bottoms), list(grid))
        if not runs.calls and not found:
            raise Mistake("not-attempted", "`train` was not called, and nothing was returned.")
        _judge(found, runs, grid, about)
    return "six cases: best values inside, below and above the grid, and runs that diverge; all at equal samples."


def _judge(found: object, runs: Runs, grid: Sequence[float], about: str) -> None:
    for batch, updates, _ in runs.calls:
        if updates * batch != SAMPLES:
            text = f"{about}: with batches of {batch}, {updates:g} updates read {updates * batch:g} samples"
            raise Mistake("equal-updates", f"{text}; each run may read {SAMPLES}.")
    if not isinstance(found, Mapping):
        raise Mistake("wrong-type", f"expected a dictionary, got {repr(found)}.")
    if missing := [batch for batch in runs.bottoms if batch not in found]:
        raise Mistake("unfinished", f"{about}: there is no entry for {', '.join(map(str, missing))}.")
    got = {batch: _pair(found[batch]) for batch in runs.bottoms}
    for batch, (lr, loss) in got.items():
        want = runs.best(batch)
        if close(lr, want) and close(loss, runs.loss(batch, want)):
            continue
        said = f"{about}: for batches of {batch} you found {lr:g} with loss {loss:.3f}"
        if isnan(loss) or isnan(lr) or (lr > 0 and isnan(runs.loss(batch, lr))):
            raise Mistake("nan-is-best", f"{said}, a run that diverged.")
        if close(lr, want):
            raise Mistake("not-the-loss", f"{said}; its loss was {runs.loss(batch, want):.3f}.")
        if any(close(lr, end) for end in (grid[0], grid[-1])) and not grid[0] < want < grid[-1]:
            raise Mistake("stops-at-the-end", f"{said}; the grid ends there, and beyond it the loss is lower.")
        if any(close(lr, runs.best(other)) for other in runs.bottoms if other != batch):
            raise Mistake("one-learning-rate", f"{said}: that is another batch's best learning rate, not its own.")
        raise Mistake("wrong-value", f"{said}; the best is {want:g}, with {runs.loss(batch, want):.3f}.")


def _pair(entry: object) -> tuple[float, float]:
    try:
        lr, loss = entry
    except (TypeError, ValueError):
        raise Mistake("not-the-loss", f"expected a learning rate and its loss, got {repr(entry)}.") from None
    return number(lr), number(loss)
