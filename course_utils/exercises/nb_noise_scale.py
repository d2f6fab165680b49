"""The exercise of *noise scale*: the gradient noise scale, from copies of `.grad`."""

from math import nan

import torch

from course_utils.exercises.judging import CHANGED_INPUT, changed, exercise, number, same

ONE_SIZE = "one-size", "", "Every formula divides by a difference of the two batch sizes. With N = 1 it is zero."


def readings(small, large, b, whole):
    """Squared norm of the true gradient, and variance, from squared norms at two batch sizes."""
    return (whole * large - b * small) / (whole - b), (small - large) / (1 / b - 1 / whole)


def compare(case, found, each, sums, b):
    """Compares a noise scale with that of the pieces' squared norms and the sums'."""
    n, small, large = each.shape[1], each.mean(1), sums[:, -1]
    squares, traces = readings(small, large, b, n * b)

    def ratio(small, large=large):
        squares, traces = readings(small, large, b, n * b)
        return float(traces.mean() / squares.mean())

    same(case, found, ratio(small), wrong=[
        ("ratio-first", float((traces / squares).mean()), "", "Step 2 averages something else before the ratio. What?"),
        ("loss-scale", ratio(small / n**2), "", "The loop has divided by N. What does that do to a squared norm?"),
        ("running-sum", ratio(sums.mean(1) * n**2), "", "A copy holds all micro-batches so far. What did each add?"),
        ("not-squared", ratio(each.sqrt().mean(1), large.sqrt()), "", "Do you square before averaging, or after?"),
        ("not-averaged", ratio(small * n), "", "Both readings need means, over micro-batches and over windows."),
        ("one-window", float(traces[0] / squares[0]), "", "How many windows enter your two means? Print their number."),
        ("last-only", ratio(each[:, -1]), "", "How many micro-batches of a window enter the small norm?"),
        ("wrong-unit", ratio(small) / b, "", "b and B are numbers of samples, and so is the noise scale."),
        ("swapped", 1 / ratio(small), "", "Which of the two readings is the numerator?"),
        ("inflated-norm", float(traces.mean() / large.mean()), "", "Which squared norm is free of noise (Step 1)?"),
    ])  # fmt: skip


@exercise
def noise_scale(answer):
    for windows, n, b in ((6, 4, 8), (5, 2, 3), (1, 4, 8), (3, 1, 8)):
        case = f"{windows} windows of {n} micro-batches of {b} samples: the noise scale"
        noise = torch.randn(windows, n, 6, generator=torch.Generator().manual_seed(11)) / b**0.5
        pieces = torch.tensor([0.9, -0.6, 0.4, 0.0, 0.3, -0.2]) + noise
        pieces *= torch.linspace(1.0, 0.5, windows)[:, None, None]
        sums = (pieces / n).cumsum(1)  # of a loop that divides by n, and zeroes after a window
        given = [[*window] for window in sums.clone()]
        found = number(answer(given, b))
        if n == 1:
            same(case, found, nan, ONE_SIZE)
        else:
            compare(case, found, pieces.square().sum(2), sums.square().sum(2), b)
        same("input", changed(given, [[*window] for window in sums]), "", CHANGED_INPUT)
    return (
        "N = 2 and 4, one window and several, weights that move, and N = 1: the noise scale is the ratio of the two "
        "means."
    )
