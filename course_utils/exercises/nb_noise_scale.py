"""The exercise of *noise scale*: the gradient noise scale, from copies of `.grad`."""

from math import nan

import torch

from course_utils.exercises.judging import exercise, number, same, unchanged

HINT = "What did each micro-batch add, before the loop divided by N? Square, average over all windows, then divide."


@exercise("N = 1, 2 and 4, one window and several, weights that move: the noise scale is the ratio of two means.")
def noise_scale(answer):
    torch.default_generator.manual_seed(11)
    for windows, n, b in ((6, 4, 8), (5, 2, 3), (1, 4, 8), (3, 1, 8)):
        pieces = torch.tensor([0.9, -0.6, 0.4, 0.0, 0.3, -0.2]) + torch.randn(windows, n, 6) / b**0.5
        pieces *= torch.linspace(1.0, 0.5, windows)[:, None, None]
        sums = (pieces / n).cumsum(1)  # of a loop that divides by n, and zeroes after a window
        given = [[*window] for window in sums.clone()]
        small, large = pieces.square().sum(2).mean(), sums[:, -1].square().sum(1).mean()
        right = float((small - large) / (1 / b - 1 / (n * b)) / ((n * large - small) / (n - 1))) if n > 1 else nan
        case = f"{windows} windows of {n} micro-batches of {b} samples: the noise scale"
        same(case, number(answer(given, b)), right, hint=HINT)
        unchanged(given, [[*window] for window in sums])
