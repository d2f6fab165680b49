"""The exercise of the notebook gradients_by_hand: a slope by finite differences."""

from collections.abc import Callable
from contextlib import suppress
from itertools import product
from numbers import Real

import torch

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, close, compare, each_of, lost_digits, number


@exercise(
    "slope",
    hints={
        "no-run": "A slope is a rise divided by a run. How far apart are your two points?",
        "half-distance": "Draw the two points on a line, with w between them, and read off the distance from one to "
        "the other.",
        "double-distance": "Draw the two points that you use on a line, and read off the distance from one to the "
        "other.",
        "one-sided": "One of your two points is w itself, so you look to one side only.",
        "wrong-sign": "Take a function that rises: which of the two values is larger, and what is the sign of its "
        "slope?",
        "adds": "The rise says how much larger one value is than the other. Which operation gives that?",
        "parentheses": "Python divides before it subtracts. Compute the rise on a line of its own, and print it.",
        "other-points": "Print the numbers at which you call `f`, for two different values of h.",
        "low-precision": "Which line rounds, or makes a float32? Return the quotient with all the digits that it has.",
        "wrong-value": "Try a straight line, f(w) = 5 - 2w, whose slope is -2 everywhere. Print the rise and the run.",
    },
)
def _slope(answer: Callable) -> str:
    cases = [(lambda w: w**3, lambda w: 3 * w**2, w) for w in (-1.5, 1 / 3, 2.0)]
    cases += [(lambda w: 5.0 - 2.0 * w, lambda w: -2.0, 2.0), (lambda w: w**2, lambda w: 2 * w, 0.0)]
    aside = ""
    for (f, derivative, w), h in product(cases, (1e-2, 1e-4)):
        points: list = []
        right, got = derivative(w), number(answer(lambda x: points.append(x) or f(x), w, h))  # noqa: B023
        case = f"at w = {w:.4g} with h = {h} the slope is {right:.8g}, your function says {got:.8g}"
        known = _wrong_slopes(f, w, h)
        if not _are_at(points, (w - h, w + h), 0.01 * h):
            elsewhere = "it does not ask for both f(w - h) and f(w + h)"
            aside = aside or f"{case}, but {elsewhere}"
            if abs(got - right) < h:
                known.append(("other-points", elsewhere, got))
        known += lost_digits(got, right, float32=1e-6 / h)
        if not close(got, right, rtol=0.0, atol=2 * h**2):
            compare(got, right, case, known, rtol=0.0, atol=1e-9)
    if aside:
        raise Mistake("other-points", f"{aside}.")
    return "5 functions, 2 distances: the slope is right to the order of h squared."


def _wrong_slopes(f: Callable, w: float, h: float) -> list[tuple[str, str, float]]:
    left, right, run = f(w - h), f(w + h), 2 * h
    rise, ahead, behind, wide = right - left, right - f(w), f(w) - left, f(w + run) - f(w)
    grouped = "the difference needs parentheses, or else only the second value is divided"
    divided = "the difference has to be divided by the distance between the points"
    too_long = "half as much: the distance that you divide by is twice that of your points"
    return [
        *each_of(
            "parentheses", grouped, (right - left / run, right - left / h, right - left / 2, right - left / 2 * h)
        ),
        *each_of(
            "adds", "the two values are added; the rise is their difference", ((right + left) / d for d in (run, h, 2))
        ),
        *each_of("no-run", divided, (rise * factor for factor in (1, 0.5, run, h, h / 2))),
        *each_of("no-run", divided, (ahead, behind, ahead * h, behind * h)),
        *each_of("wrong-sign", "the sign is reversed", (-rise / run, -rise / h, -ahead / h, -behind / h)),
        ("half-distance", "twice as much: from w - h to w + h the distance is 2h, not h", rise / h),
        *each_of("double-distance", too_long, (rise / run / 2, ahead / run, behind / run)),
        *each_of("one-sided", "off by about h: look to both sides of w", (ahead / h, behind / h, wide / run)),
    ]


def _are_at(points: list, places: tuple[float, ...], atol: float) -> bool:
    """Whether a function was called near each of these places; a point may be a number, an array, or a tensor."""
    flat = []
    for point in points:
        with suppress(Exception):  # a tensor that lives inside torch.func only
            flat += [float(point)] if isinstance(point, Real) else torch.as_tensor(point).detach().flatten().tolist()
    return all(any(abs(x - place) < atol for x in flat) for place in places)
