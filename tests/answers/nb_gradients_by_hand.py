"""Answers to "slope", with what a function can be called with."""

from fractions import Fraction

import numpy as np
import torch

from answers import right, wrong
from solutions import solution

slope = solution("slope")


@right("slope")
def slope_by_numpy(f, w, h):
    points = np.linspace(w - h, w + h, 3)
    return np.gradient(f(points), points)[1]


@right("slope")
def slope_from_four_points(f, w, h):
    return (8 * (f(w + h) - f(w - h)) - (f(w + 2 * h) - f(w - 2 * h))) / (12 * h)


right("slope")(lambda f, w, h: slope(f, Fraction(w), Fraction(h)))
right("slope")(lambda f, w, h: slope(f, torch.tensor(w), torch.tensor(h)))

wrong("slope", "wrong-value")(lambda f, w, h: f(w + h) - f(w - h) / (2 * h))
wrong("slope", "wrong-value")(lambda f, w, h: (f(w + h) - f(w)) / h)
wrong("slope", "wrong-value")(lambda f, w, h: round(slope(f, w, h), 3))
wrong("slope", "other-points")(lambda f, w, h: slope(f, w, 1e-5))
wrong("slope", "wrong-type")(lambda f, w, h: f"{slope(f, w, h)} per step")
wrong("slope", "not-attempted")(lambda f, w, h: print("rise", f(w + h) - f(w - h)))
