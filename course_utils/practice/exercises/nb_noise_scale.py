"""The exercise of *noise scale*: the gradient noise scale, from what an accumulation loop leaves in `.grad`."""

from collections.abc import Callable, Iterator
from math import isnan

import torch
from torch import Tensor

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, changed, close, compare, number

# Windows, micro-batches per window (n), samples per micro-batch (b). All estimates are positive.
CASES = ((6, 4, 8), (5, 2, 3), (4, 3, 1), (7, 5, 2), (1, 4, 8))


FLOAT32 = 5e-5  # what a noise scale may be off by if it was computed in float32; two readings of one size nearly cancel


@exercise(
    "noise_scale",
    hints={
        "running-sum": "The copy after micro-batch k holds all micro-batches up to k. What did each backward pass add?",
        "loss-scale": "What the loop added is a micro-batch's gradient divided by N, and its square is N² times too "
        "small. Is the last copy of a window the mean already?",
        "ratio-first": "You average one noise scale per window. Step 2 averages something else first. What?",
        "wrong-unit": "b and B are numbers of samples, and so is the noise scale.",
        "swapped": "Which of b and B belongs to the small norms? Which of the two readings is the numerator?",
        "one-size": "Every formula divides by a difference of the two batch sizes. With N = 1 it is zero.",
        "not-averaged": "Count the terms of each sum. Both readings need means, over micro-batches and over windows.",
        "not-squared": "The formulas hold for squared norms. Do you square before averaging, or after?",
        "inflated-norm": "What does noise do to the squared norm of a batch's gradient (Step 1)? Which reading is free "
        "of it?",
        "one-window": "How many windows enter your two means? Print their number.",
        "last-only": "How many micro-batches of a window enter the small norm? Print their number.",
        "changed-input": "The copies belong to your colleague, who may use them again. Which line of yours writes to "
        "them?",
        "low-precision": "Return the number as it is. Do you round, or compute in half precision?",
        "wrong-value": "Take one window of two micro-batches with gradients of a single entry, such as 1 and 3, and do "
        "it by hand.",
    },
)
def _noise_scale(answer: Callable) -> str:
    generator = torch.Generator().manual_seed(11)
    for windows, n, b in CASES:
        pieces = _pieces(windows, n, b, generator)
        (_, _, want), *bugs = _estimates(pieces, b)
        snapshots = _snapshots(pieces)
        got = number(answer(snapshots, b))
        case = f"{windows} windows of {n} micro-batches of {b} samples"
        _compare(got, want, case, bugs)
        how = changed(snapshots, _snapshots(pieces), "the list of copies")
        if how:
            raise Mistake("changed-input", f"{case}: the number is right, but {how}.")
    _judge_single_micro_batches(answer, generator)
    return (
        "N = 2 to 5, 1 to 8 samples, one window and several, weights that move, and N = 1: the noise scale is the "
        "ratio of the two means."
    )


def _compare(got: float, want: Tensor, case: str, bugs: list[tuple[str, str, Tensor]]) -> None:
    """Compares a noise scale, which may have been computed in float32, but not rounded."""
    if close(got, float(want), 100 * FLOAT32) and not close(got, float(want)):
        if close(got, float(want), FLOAT32) and got != round(got, 6):
            return
        how = "it is rounded, or computed in half precision"
        raise Mistake("low-precision", f"{case}: expected {want:.9g}, got {got:.9g}: {how}.")
    case = f"{case}: expected {want:.4g}, got {got:.4g}"
    compare(torch.tensor(got, dtype=torch.float64), want, case, bugs, rtol=FLOAT32)


def _judge_single_micro_batches(answer: Callable, generator: torch.Generator) -> None:
    case = "windows of a single micro-batch: there is no second size to compare with, expected NaN"
    try:
        got = number(answer(_snapshots(_pieces(3, 1, 8, generator)), 8))
    except ZeroDivisionError as error:
        raise Mistake("one-size", f"{case}, your function raised ZeroDivisionError: {error}.") from None
    except Mistake as mistake:
        raise Mistake("one-size", f"{case}, and {mistake.verdict.message}") from None
    if not isnan(got):
        raise Mistake("one-size", f"{case}, got {got:.4g}.")


def _pieces(windows: int, n: int, b: int, generator: torch.Generator) -> Tensor:
    """Each micro-batch's gradient, the mean over its samples: (windows, n, weights). They shrink, as in a run."""
    noise = torch.randn((windows, n, 6), generator=generator, dtype=torch.float64) / b**0.5
    true = torch.tensor([0.9, -0.6, 0.4, 0.0, 0.3, -0.2], dtype=torch.float64)
    return (true + noise) * torch.linspace(1.0, 0.5, windows, dtype=torch.float64)[:, None, None]


def _snapshots(pieces: Tensor) -> list[list[Tensor]]:
    """What `.grad` holds after each backward pass of a loop that divides the loss by n and zeroes after each window."""
    return [[grad.clone() for grad in (window / len(window)).cumsum(0)] for window in pieces]


def _estimates(pieces: Tensor, b: int) -> Iterator[tuple[str, str, Tensor]]:
    """The correct noise scale, under an empty name; then what each known bug makes of it, with its hint."""
    n, norms = pieces.shape[1], pieces.square().sum(2)
    small, large = norms.mean(1), pieces.mean(1).square().sum(1)
    running, root = (pieces / n).cumsum(1).square().sum(2), norms.sqrt().mean(1)
    share = torch.arange(1, n + 1, dtype=torch.float64) / n

    def readings(small: Tensor, large: Tensor, b: float = b, whole: float = n * b) -> tuple[Tensor, Tensor]:
        return (whole * large - b * small) / (whole - b), (small - large) / (1 / b - 1 / whole)

    def ratio(*arguments: Tensor | float) -> Tensor:
        square, trace = readings(*arguments)
        return trace.mean() / square.mean()

    square, trace = readings(small, large)
    each = trace / square
    yield "", "", ratio(small, large)
    for wrong in (each.mean(), each.median(), each.sort().values[len(each) // 2]):
        yield "ratio-first", "the ratio was taken in each window; average the two readings first", wrong
    for wrong in (ratio(small / n**2, large), ratio(small / n, large), ratio(small * n**2, large)):
        yield "loss-scale", "the loop has divided the loss by N, so a piece is N times too small, its square N²", wrong
    for wrong in (ratio(small, large * n), ratio(small, large * n**2), ratio(small * n**2, large * n**4)):
        yield "loss-scale", "a window's .grad is already the mean of its micro-batches and needs no factor", wrong
    for wrong in (
        running.mean(1),
        running.mean(1) / n,
        running.mean(1) * n**2,
        (running / share**2).mean(1),
        running.sum(1),
    ):
        yield "running-sum", ".grad is a running sum: subtract what was there before", ratio(wrong, large)
    yield "not-averaged", "the micro-batches' squared norms are added, not averaged", ratio(small * n, large)
    for wrong in (trace.sum() / square.mean(), trace.mean() / square.sum()):
        yield "not-averaged", "one reading is added over the windows, the other averaged", wrong
    roots = ratio(root, large.sqrt()), ratio(small.sqrt(), large.sqrt()), ratio(small, large).sqrt()
    for wrong in (*roots, ratio(root**2, large)):
        yield "not-squared", "the formulas need squared norms, averaged after squaring", wrong
    for wrong in (1 / ratio(small, large), ratio(large, small), ratio(small, large, n * b, b)):
        yield "swapped", "two things are swapped: small and large, or b and B, or variance and squared norm", wrong
    for wrong in (ratio(small, large, 1, n), ratio(small, large, 1 / n, 1), ratio(small, large) / (n * b)):
        yield "wrong-unit", "the sizes of the batches are missing; b and B count samples, not micro-batches", wrong
    for sizes in ((b, n), (1, n * b), (b, len(pieces) * b)):
        yield "wrong-unit", "b and B are the samples of a micro-batch and of a window", ratio(small, large, *sizes)
    for wrong in (trace.mean() / large.mean(), trace.mean() / small.mean()):
        yield "inflated-norm", "noise makes the norm of a batch's gradient larger than that of the true one", wrong
    for place in (0, -1):
        yield "one-window", "only one of the windows is used", each[place]
    for place in range(n):
        hint = "only one micro-batch of each window is used; average over all N"
        yield "last-only", hint, ratio(norms[:, place], large)
    missing = "the first micro-batch of each window is left out; what the first backward pass adds is the first copy"
    yield "wrong-value", missing, ratio(norms[:, 1:].mean(1), large)
    mean = pieces.mean((0, 1)).square().sum().expand_as(large)
    yield "wrong-value", "square the norm of each window, then average, not the other way round", ratio(small, mean)
    yield "wrong-value", "the readings need means, not medians", trace.median() / square.median()
    yield "wrong-value", "that is the variance alone; divide it by the squared norm", trace.mean()
    yield "wrong-value", "that is the squared norm alone; divide the variance by it", square.mean()
    variance = b * pieces.var(1, correction=0).sum(1)
    biased = variance.mean() / (large - variance / (n * b)).mean()
    yield "wrong-value", "the variance of N micro-batches is divided by N - 1, not by N", biased
