"""The exercise of notebook 06c: the gradient noise scale, from what an accumulation loop leaves in `.grad`."""

from collections.abc import Callable, Iterator
from math import isnan

import torch
from torch import Tensor

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, compare, number

# Windows, micro-batches per window (n), samples per micro-batch (b). All estimates are positive.
CASES = ((6, 4, 8), (5, 2, 3), (4, 3, 1), (7, 5, 2), (1, 4, 8))


@exercise(
    "noise_scale",
    hints={
        "running-sum": "The copy after micro-batch k holds all micro-batches up to k. What did each backward pass add?",
        "loss-scale": "What the loop added is a micro-batch's gradient divided by N, and its square is N² times too "
        "small. The last copy of a window needs no factor: it is the mean already.",
        "ratio-first": "You average one noise scale per window. Average the squared norms and the traces first, and "
        "divide once.",
        "wrong-unit": "Both b and B are numbers of samples, not of micro-batches.",
        "swapped": "Which of the two batch sizes belongs to the small norms?",
        "one-size": "Every formula divides by a difference of the two batch sizes. With N = 1 it is zero.",
        "inflated-norm": "Noise makes the norm of a batch's gradient larger than that of the true one. Which formula "
        "subtracts that?",
        "not-squared": "The formulas hold for squared norms.",
        "not-averaged": "Each window has N small squared norms. Take their mean.",
        "one-window": "One window is far too noisy. Use all of them.",
        "last-only": "Every micro-batch of a window gives a small norm, not only the last.",
    },
)
def _noise_scale(answer: Callable) -> str:
    generator = torch.Generator().manual_seed(11)
    for windows, n, b in CASES:
        pieces = _pieces(windows, n, b, generator)
        (_, _, want), *bugs = _estimates(pieces, b)
        got = number(answer(_snapshots(pieces), b))
        case = f"{windows} windows of {n} micro-batches of {b} samples: expected {want:.4g}, got {got:.4g}"
        compare(torch.tensor(got, dtype=torch.float64), want, case, bugs)
    _judge_single_micro_batches(answer, generator)
    return (
        "N = 2 to 5, 1 to 8 samples, one window and several, weights that move, and N = 1: the noise scale is the "
        "ratio of the two means."
    )


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
    for wrong in (each.mean(), each.median()):
        yield "ratio-first", "the ratio was taken in each window; average the two readings first", wrong
    for wrong in (ratio(small / n**2, large), ratio(small / n, large)):
        yield "loss-scale", "the loop has divided the loss by N, so a piece is N times too small, its square N²", wrong
    for wrong in (ratio(small, large * n**2), ratio(small * n**2, large * n**4)):
        yield "loss-scale", "a window's .grad is already the mean of its micro-batches and needs no factor", wrong
    for wrong in (running.mean(1), running.mean(1) * n**2, (running / share**2).mean(1), running.sum(1)):
        yield "running-sum", ".grad is a running sum: subtract what was there before", ratio(wrong, large)
    yield "not-averaged", "the micro-batches' squared norms are added, not averaged", ratio(small * n, large)
    for wrong in (ratio(root, large.sqrt()), ratio(root**2, large)):
        yield "not-squared", "the formulas need squared norms, averaged after squaring", wrong
    for wrong in (1 / ratio(small, large), ratio(large, small), ratio(small, large, n * b, b)):
        yield "swapped", "two things are swapped: small and large, or b and B, or variance and squared norm", wrong
    for wrong in (ratio(small, large, 1, n), ratio(small, large, 1 / n, 1)):
        yield "wrong-unit", "the sizes of the batches are missing; b and B count samples, not micro-batches", wrong
    for wrong in (trace.mean() / large.mean(), trace.mean() / small.mean()):
        yield "inflated-norm", "noise makes the norm of a batch's gradient larger than that of the true one", wrong
    for place in (0, -1):
        yield "one-window", "only one of the windows is used", each[place]
    for place in (0, -1):
        hint = "only one micro-batch of each window is used; average over all N"
        yield "last-only", hint, ratio(norms[:, place], large)
