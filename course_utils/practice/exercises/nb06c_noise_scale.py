"""The exercise of notebook 06c: the gradient noise scale, from what an accumulation loop leaves in `.grad`."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, number

# Windows, micro-batches per window (n), items per micro-batch (b). All estimates are positive.
CASES = ((6, 4, 8), (5, 2, 3), (4, 3, 1), (7, 5, 2), (1, 4, 8))


@exercise("noise_scale")
def _noise_scale(answer: Callable) -> str:
    generator = torch.Generator().manual_seed(11)
    for windows, n, b in CASES:
        pieces = _pieces(windows, n, b, generator)
        square, trace = _readings(*_norms(pieces), b, n * b)
        right = float(trace.mean() / square.mean())
        got = number(answer(_snapshots(pieces), b))
        if _close(got, right):
            continue
        case = f"{windows} windows of {n} micro-batches of {b} items: expected {right:.4g}, got {got:.4g}"
        for bug, wrong, hint in _mistakes(pieces, b):
            if _close(got, float(wrong)):
                raise Mistake(bug, f"{case}: {hint}.")
        raise Mistake("wrong-value", f"{case}.")
    _one_micro_batch(answer, generator)
    return (
        "N = 2 to 5, 1 to 8 items, one window and several, weights that move, and N = 1: the noise scale is the ratio "
        "of the two means."
    )


def _one_micro_batch(answer: Callable, generator: torch.Generator) -> None:
    case = "windows of a single micro-batch: there is no second size to compare with, expected nan"
    try:
        got = number(answer(_snapshots(_pieces(3, 1, 8, generator)), 8))
    except ZeroDivisionError as error:
        raise Mistake("one-size", f"{case}, your function raised ZeroDivisionError: {error}.") from None
    except Mistake as found:
        raise Mistake("one-size", f"{case}, and {found.verdict.message}") from None
    if not math.isnan(got):
        raise Mistake("one-size", f"{case}, got {got:.4g}.")


def _close(got: float, want: float) -> bool:
    return math.isclose(got, want, rel_tol=1e-6)  # also for an answer that was reckoned in float32 somewhere


def _pieces(windows: int, n: int, b: int, generator: torch.Generator) -> Tensor:
    """Gradients of micro-batches, each the mean over its own items: (windows, n, weights). They shrink, as in a run."""
    draw = torch.randn((windows, n, 6), generator=generator, dtype=torch.float64) / b**0.5
    true = torch.tensor([0.9, -0.6, 0.4, 0.0, 0.3, -0.2], dtype=torch.float64)
    shrink = torch.linspace(1.0, 0.5, windows, dtype=torch.float64)
    return (true + draw) * shrink[:, None, None]


def _snapshots(pieces: Tensor) -> list[list[Tensor]]:
    """What `.grad` holds after each backward, of a loop that divides the loss by n and zeroes after each window."""
    return [[grad.clone() for grad in (window / len(window)).cumsum(0)] for window in pieces]


def _norms(pieces: Tensor) -> tuple[Tensor, Tensor]:
    return pieces.square().sum(2).mean(1), pieces.mean(1).square().sum(1)


def _readings(small: Tensor, large: Tensor, b: float, whole: float) -> tuple[Tensor, Tensor]:
    return (whole * large - b * small) / (whole - b), (small - large) / (1 / b - 1 / whole)


def _mistakes(pieces: Tensor, b: int) -> Iterator[tuple[str, Tensor, str]]:
    n, (small, large) = pieces.shape[1], _norms(pieces)
    sums = (pieces / n).cumsum(1).square().sum(2)
    counts = torch.arange(1, n + 1, dtype=torch.float64)

    def ratio(small: Tensor, large: Tensor, b: float = b, whole: float = n * b) -> Tensor:
        square, trace = _readings(small, large, b, whole)
        return trace.mean() / square.mean()

    square, trace = _readings(small, large, b, n * b)
    for wrong in ((trace / square).mean(), (trace / square).median()):
        yield "ratio-first", wrong, "the ratio was taken in each window; average the two readings first"
    for wrong in (ratio(small / n**2, large), ratio(small / n, large)):
        yield "loss-scale", wrong, "the loop has divided the loss by N, so a piece is N times too small, its square N²"
    for wrong in (ratio(small, large * n**2), ratio(small * n**2, large * n**2 * n**2)):
        yield "loss-scale", wrong, "a window's .grad is the mean of its micro-batches already, it needs no factor"
    for wrong in (sums.mean(1), sums.mean(1) * n**2, (sums * (n / counts) ** 2).mean(1), sums.sum(1)):
        yield "running-sum", ratio(wrong, large), ".grad is a running sum: subtract what was there before"
    yield "not-averaged", ratio(small * n, large), "the micro-batches' squared norms are added, not averaged"
    norms = pieces.square().sum(2).sqrt().mean(1)
    for wrong in (ratio(norms, large.sqrt()), ratio(norms**2, large)):
        yield "not-squared", wrong, "the formulas want squared norms, averaged after squaring"
    for wrong in (1 / ratio(small, large), ratio(large, small), ratio(small, large, n * b, b)):
        yield "swapped", wrong, "two things have changed places: small and large, or b and B, or variance and square"
    for wrong in (ratio(small, large, 1, n), ratio(small, large, 1 / n, 1)):
        yield "wrong-unit", wrong, "the sizes of the batches are missing; b and B count items, not micro-batches"
    for wrong in (trace.mean() / large.mean(), trace.mean() / small.mean()):
        yield "inflated-norm", wrong, "the norm of a batch is not that of the true gradient: noise makes it longer"
    for which in (0, -1):
        yield "one-window", trace[which] / square[which], "only one of the windows is used"
    for which in (0, -1):
        one = pieces[:, which].square().sum(1)
        yield "last-only", ratio(one, large), "only one micro-batch of each window is used; average over all N"
