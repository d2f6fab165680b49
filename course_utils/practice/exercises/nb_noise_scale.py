"""The exercise of *noise scale*: the gradient noise scale, from what an accumulation loop leaves in `.grad`."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from course_utils.practice.bench import Exercise, Seen, changed, edits, number


def readings(small, large, b, whole):
    """The squared norm of the true gradient, and the variance, from the squared norms of batches of two sizes."""
    return (whole * large - b * small) / (whole - b), (small - large) / (1 / b - 1 / whole)


def solution(snapshots, b):
    n = len(snapshots[0])
    if n == 1:
        return math.nan
    smalls, larges = [], []
    for window in snapshots:
        before = [torch.zeros_like(window[0]), *window[:-1]]
        parts = [(later - earlier) * n for earlier, later in zip(before, window, strict=True)]
        smalls.append(sum(part.square().sum() for part in parts) / n)
        larges.append(window[-1].square().sum())
    small, large = torch.stack(smalls), torch.stack(larges)
    squares, traces = readings(small, large, b, n * b)
    return traces.mean() / squares.mean()


class Case(NamedTuple):
    """All estimates are positive."""

    windows: int
    n: int
    b: int

    def __str__(self) -> str:
        return f"{self.windows} windows of {self.n} micro-batches of {self.b} samples"


def watch(answer: Callable, case: Case) -> Seen:
    windows, n, b = case
    noise = torch.randn(windows, n, 6, generator=torch.Generator().manual_seed(11), dtype=torch.float64) / b**0.5
    true = torch.tensor([0.9, -0.6, 0.4, 0.0, 0.3, -0.2], dtype=torch.float64)
    pieces = (true + noise) * torch.linspace(1.0, 0.5, windows, dtype=torch.float64)[:, None, None]
    given = [[*(window / n).cumsum(0)] for window in pieces]  # of a loop that divides by n, and zeroes after a window
    before = [[grad.clone() for grad in window] for window in given]
    found = number(answer(given, b))
    return {"the noise scale" if n > 1 else ONE_SIZE: found, "input": changed(given, before)}


ONE_SIZE = "with N = 1 there is no second size"
PARTS, SMALL = "(later - earlier) * n", "sum(part.square().sum() for part in parts) / n"
NORMS = "sum(part.norm() for part in parts) / n"
RATIO, LARGE = "traces.mean() / squares.mean()", "window[-1].square().sum()"
NOISE_SCALE = Exercise(
    "noise_scale",
    "noise_scale",
    watch,
    solution,
    cases=[Case(6, 4, 8), Case(5, 2, 3), Case(1, 4, 8), Case(3, 1, 8)],
    edits=[
        *edits("ratio-first", RATIO, "(traces / squares).mean()"),
        *edits("loss-scale", SMALL, f"{SMALL} / n**2", f"{SMALL} / n", f"{SMALL} * n**2"),
        *edits("running-sum", PARTS, "later", "later * n"),
        *edits("not-averaged", SMALL, SMALL[:-4]),
        *edits("not-averaged/windows", RATIO, "traces.sum() / squares.mean()", "traces.mean() / squares.sum()"),
        *edits("not-squared", f"{SMALL})\nlarges.append({LARGE}", f"{NORMS})\nlarges.append(window[-1].norm()"),
        *edits("swapped", RATIO, "squares.mean() / traces.mean()"),
        *edits("swapped", "readings(small, large, b, n * b)", "readings(large, small, b, n * b)"),
        *edits("wrong-unit", "b, n * b", "1, n"),
        *edits("inflated-norm", RATIO, "traces.mean() / large.mean()", "traces.mean() / small.mean()"),
        *edits("one-window", RATIO, "traces[0] / squares[0]", "traces[-1] / squares[-1]"),
        *edits("last-only", SMALL, "parts[-1].square().sum()", "parts[0].square().sum()"),
    ],
    channels={ONE_SIZE: "one-size"},
)
