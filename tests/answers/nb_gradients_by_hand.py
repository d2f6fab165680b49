"""Answers to "slope"."""

from fractions import Fraction

import numpy as np
import torch

from answers import right, wrong


@right("slope")
def slope_of_an_array(f, w, h):
    left, right = f(np.array([w - h, w + h]))
    return (right - left) / (2 * h)


@right("slope")
def slope(f, w, h):
    rise = f(w + h) - f(w - h)
    return rise / (2 * h)


@right("slope")
def slope_by_numpy(f, w, h):
    points = np.linspace(w - h, w + h, 3)
    return np.gradient([f(point) for point in points], points)[1]


@right("slope")
def slope_from_four_points(f, w, h):
    return (8 * (f(w + h) - f(w - h)) - (f(w + 2 * h) - f(w - 2 * h))) / (12 * h)


@right("slope")
def slope_of_fractions(f, w, h):
    w, h = Fraction(w), Fraction(h)
    return (f(w + h) - f(w - h)) / (2 * h)


@right("slope")
def slope_as_a_tensor(f, w, h):
    w, h = torch.tensor([w, h], dtype=torch.float64)
    return (f(w + h) - f(w - h)) / (2 * h)


wrong("slope", "one-sided")(lambda f, w, h: (f(w + h) - f(w)) / h)
wrong("slope", "half-distance")(lambda f, w, h: f(w + h) / h - f(w - h) / h)
wrong("slope", "double-distance")(lambda f, w, h: (f(w + h) - f(w)) / (2 * h))
wrong("slope", "wrong-sign")(lambda f, w, h: (f(w) - f(w + h)) / h)
wrong("slope", "adds")(lambda f, w, h: (f(w + h) + f(w - h)) / (2 * h))
wrong("slope", "parentheses")(lambda f, w, h: f(w + h) - f(w - h) / (2 * h))
wrong("slope", "no-run")(lambda f, w, h: (f(w + h) - f(w - h)) / 2)
wrong("slope", "low-precision")(lambda f, w, h: round((f(w + h) - f(w - h)) / (2 * h), 3))
wrong("slope", "other-points")(lambda f, w, h: slope(f, w, 1e-5))
wrong("slope", "wrong-type")(lambda f, w, h: f"{slope(f, w, h)} per step")
wrong("slope", "not-attempted")(lambda f, w, h: print("rise", f(w + h) - f(w - h)))
wrong("slope", "raises")(lambda f, w, h: f(w + h) - f(w - h) / 2 * H)  # noqa: F821
