"""The exercise of *should you accumulate*: a comparison of batch sizes that is fair."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan, log2, nan
from reprlib import repr
from typing import NamedTuple

from course_utils.practice.bench import Exercise, Mistake, Seen, agree, number

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


class Case(NamedTuple):
    about: str
    runs: Runs
    grid: Sequence[float]

    def __str__(self) -> str:
        return self.about


_GRID = (2**-7, 2**-6, 2**-5, 2**-4)
CASES = [
    Case("the best values lie inside the grid", Runs({8: -6, 64: -5}), _GRID),
    Case("a best value lies below the grid", Runs({4: -10, 64: -5}), _GRID),
    Case("a best value lies above the grid", Runs({16: -6, 512: -2}), _GRID),
    Case("large learning rates diverge", Runs({8: -5, 64: -6}, limit=-4), _GRID),
    Case("all learning rates of the grid diverge", Runs({8: -9, 64: -10}, limit=-7), _GRID),
    Case("the best value is the last that does not diverge", Runs({32: -5}, limit=-4), (2**-8, 2**-7, 2**-6, 2**-5)),
]


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


def watch(answer: Callable, case: Case) -> Seen:
    """Watches the samples that each run reads, and each batch's learning rate and loss."""
    runs = replace(case.runs, calls=[])
    found = answer(runs, SAMPLES, list(runs.bottoms), list(case.grid))
    if not runs.calls and not found:
        raise Mistake("not-attempted", "`train` was not called, and nothing was returned.")
    if not isinstance(found, Mapping):
        raise Mistake("wrong-type", f"expected a dictionary, got {repr(found)}.")
    if missing := [batch for batch in runs.bottoms if batch not in found]:
        raise Mistake("unfinished", f"{case}: there is no entry for {', '.join(map(str, missing))}.")
    read = {
        f"batches of {batch}: samples": sorted({updates * size for size, updates, _ in runs.calls if size == batch})
        for batch in runs.bottoms
    }
    return read | {f"batches of {batch}": Found(*_pair(found[batch]), batch, case) for batch in runs.bottoms}


@dataclass
class Found:
    """A batch's learning rate, and the loss there."""

    lr: float
    loss: float
    batch: int
    case: Case

    def agrees(self, other: "Found", rtol: float) -> bool:
        return agree([self.lr, self.loss], [other.lr, other.loss], rtol)

    def difference(self, want: "Found") -> tuple[str, str]:
        runs, grid = self.case.runs, self.case.grid
        said = f"for batches of {self.batch} you found {self.lr:g} with loss {self.loss:.3f}"
        if isnan(self.loss) or isnan(self.lr) or (self.lr > 0 and isnan(runs.loss(self.batch, self.lr))):
            return "nan-is-best", f"{said}, a run that diverged"
        if agree(self.lr, want.lr):
            return "not-the-loss", f"{said}; its loss was {want.loss:.3f}"
        if any(agree(self.lr, end) for end in (grid[0], grid[-1])) and not grid[0] < want.lr < grid[-1]:
            return "stops-at-the-end", f"{said}; the grid ends there, and beyond it the loss is lower"
        if any(agree(self.lr, runs.best(other)) for other in runs.bottoms if other != self.batch):
            return "one-learning-rate", f"{said}: that is another batch's best learning rate, not its own"
        return "", f"{said}; the best is {want.lr:g}, with {want.loss:.3f}"


def _pair(entry: object) -> tuple[float, float]:
    try:
        lr, loss = entry
    except (TypeError, ValueError):
        raise Mistake("not-the-loss", f"expected a learning rate and its loss, got {repr(entry)}.") from None
    return number(lr), number(loss)


COMPARE_BATCHES = Exercise(
    "compare_batches",
    "should_you_accumulate",
    watch,
    solution,
    cases=CASES,
    channels={f"batches of {2**k}: samples": "equal-updates" for k in range(10)},
)
