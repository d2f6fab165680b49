"""The exercise of the notebook gradients_by_hand: a slope by finite differences."""

from collections.abc import Callable

from course_utils.exercises.bench import Exercise, Seen, edits, number

CASES = {  # of second degree at most, where both sides give the slope exactly
    "w² at -1.5 with h = 0.01": (lambda w: w**2, -1.5, 0.01),
    "w² at -1.5 with h = 0.0001": (lambda w: w**2, -1.5, 0.0001),
    "5 - 2w + 4w² at 1/3 with h = 0.01": (lambda w: 5.0 - 2.0 * w + 4.0 * w**2, 1 / 3, 0.01),
    "w² at 0 with h = 0.01": (lambda w: w**2, 0.0, 0.01),
}


def solution(f, w, h):
    return (f(w + h) - f(w - h)) / (2 * h)


def watch(answer: Callable, case: str) -> Seen:
    f, w, h = CASES[case]
    points: list = []

    def noted(x: object) -> object:
        points.extend(map(float, x if getattr(x, "ndim", 0) else [x]))  # f may be called with an array
        return f(x)

    slope = number(answer(noted, w, h))
    sides = [any(abs(x - place) < 0.01 * h for x in points) for place in (w - h, w + h)]
    return {"the slope": slope, SIDES: sides}


SIDES = "asked at w - h, and at w + h"
ALL, RISE = "(f(w + h) - f(w - h)) / (2 * h)", "(f(w + h) - f(w - h))"
SLOPE = Exercise(
    "slope",
    "gradients_by_hand",
    watch,
    solution,
    cases=[*CASES],
    edits=[
        *edits("parentheses", ALL, "f(w + h) - f(w - h) / (2 * h)", "f(w + h) - f(w - h) / 2 * h"),
        *edits("no-run", ALL, RISE, f"{RISE} / 2", f"{RISE} / 2 * h", "f(w + h) - f(w)"),
        *edits("wrong-sign", ALL, f"-{ALL}", "(f(w) - f(w + h)) / h"),
        *edits("half-distance", ALL, f"{RISE} / h"),
        *edits("double-distance", ALL, f"{RISE} / (4 * h)", "(f(w + h) - f(w)) / (2 * h)"),
        *edits("one-sided", ALL, "(f(w + h) - f(w)) / h", "(f(w) - f(w - h)) / h"),
    ],
    channels={SIDES: "other-points"},
)
