"""The exercise of *noise scale*: the gradient noise scale, from what an accumulation loop leaves in `.grad`."""

import math
from collections.abc import Callable

import torch

from course_utils.exercises.bench import Exercise, Seen, changed, edits, number

SIZES = (6, 4, 8), (5, 2, 3), (1, 4, 8), (3, 1, 8)
CASES = {f"{windows} windows of {n} micro-batches of {b} samples": (windows, n, b) for windows, n, b in SIZES}


def readings(small, large, b, whole):
    """The squared norm of the true gradient, and the variance, from the squared norms of batches of two sizes."""
    return (whole * large - b * small) / (whole - b), (small - large) / (1 / b - 1 / whole)


def solution(snapshots, b):
    grads = torch.stack([torch.stack(window) for window in snapshots])
    n = grads.shape[1]
    if n == 1:
        return math.nan
    parts = n * grads.diff(dim=1, prepend=torch.zeros_like(grads[:, :1]))
    small, large = parts.square().sum(2).mean(1), grads[:, -1].square().sum(1)
    squares, traces = readings(small, large, b, n * b)
    return traces.mean() / squares.mean()


def watch(answer: Callable, case: str) -> Seen:
    windows, n, b = CASES[case]
    noise = torch.randn(windows, n, 6, generator=torch.Generator().manual_seed(11), dtype=torch.float64) / b**0.5
    true = torch.tensor([0.9, -0.6, 0.4, 0.0, 0.3, -0.2], dtype=torch.float64)
    pieces = (true + noise) * torch.linspace(1.0, 0.5, windows, dtype=torch.float64)[:, None, None]
    given = [[*(window / n).cumsum(0)] for window in pieces]  # of a loop that divides by n, and zeroes after a window
    before = [[grad.clone() for grad in window] for window in given]
    found = number(answer(given, b))
    return {"the noise scale" if n > 1 else ONE_SIZE: found, "input": changed(given, before)}


ONE_SIZE = "with N = 1 there is no second size"
PARTS, SMALL = "n * grads.diff(dim=1, prepend=torch.zeros_like(grads[:, :1]))", "parts.square().sum(2).mean(1)"
RATIO, LARGE = "traces.mean() / squares.mean()", "grads[:, -1].square().sum(1)"
READ = "readings(small, large, b, n * b)"
NOISE_SCALE = Exercise(
    "noise_scale",
    "noise_scale",
    watch,
    solution,
    cases=[*CASES],
    edits=[
        *edits("ratio-first", RATIO, "(traces / squares).mean()"),
        *edits("loss-scale", SMALL, f"{SMALL} / n**2", f"{SMALL} / n", f"{SMALL} * n**2"),
        *edits("running-sum", PARTS, "grads", "n * grads"),
        *edits("not-averaged", SMALL, f"n * {SMALL}"),
        *edits("not-squared", f"{SMALL}, {LARGE}", "parts.norm(dim=2).mean(1), grads[:, -1].norm(dim=1)"),
        *edits("swapped", RATIO, "squares.mean() / traces.mean()"),
        *edits("swapped", READ, "readings(large, small, b, n * b)"),
        *edits("wrong-unit", READ, "readings(small, large, 1, n)"),
        *edits("inflated-norm", RATIO, "traces.mean() / large.mean()", "traces.mean() / small.mean()"),
        *edits("one-window", RATIO, "traces[0] / squares[0]", "traces[-1] / squares[-1]"),
        *edits("last-only", SMALL, "parts[:, -1].square().sum(1)", "parts[:, 0].square().sum(1)"),
    ],
    channels={ONE_SIZE: "one-size"},
)
