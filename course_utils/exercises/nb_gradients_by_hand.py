"""The exercise of *gradients by hand*: a slope by finite differences."""

from course_utils.exercises.judging import exercise, number, same

CASES = {  # of second degree, where both sides give the slope exactly
    "w² at -1.5 with h = 0.0001": (lambda w: w**2, -1.5, 0.0001),
    "5 - 2w + 4w² at 1/3 with h = 0.01": (lambda w: 5.0 - 2.0 * w + 4.0 * w**2, 1 / 3, 0.01),
}
DRAW = "Draw your two points, and w between them. What is the rise from left to right, and how long is the run?"


@exercise("2 parabolas, 2 distances: the slope is right, and you looked to both sides of w.")
def slope(answer):
    for case, (f, w, h) in CASES.items():
        points = []

        def noted(x, f=f, points=points):
            points.extend(map(float, x if getattr(x, "ndim", 0) else [x]))  # f may be called with an array
            return f(x)

        right = (f(w + h) - f(w - h)) / (2 * h)
        same(f"{case}: the slope", number(answer(noted, w, h)), right, hint=DRAW)
        sides = [any(abs(x - side) < 0.01 * h for x in points) for side in (w - h, w + h)]
        same(f"{case}: asked at w - h, and at w + h", sides, [True, True], "other-points", DRAW)
