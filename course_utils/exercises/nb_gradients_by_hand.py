"""The exercise of *gradients by hand*: a slope by finite differences."""

from course_utils.exercises.judging import exercise, number, same

CASES = {  # of second degree at most, where both sides give the slope exactly
    "w² at -1.5 with h = 0.01": (lambda w: w**2, -1.5, 0.01),
    "w² at -1.5 with h = 0.0001": (lambda w: w**2, -1.5, 0.0001),
    "5 - 2w + 4w² at 1/3 with h = 0.01": (lambda w: 5.0 - 2.0 * w + 4.0 * w**2, 1 / 3, 0.01),
    "w² at 0 with h = 0.01": (lambda w: w**2, 0.0, 0.01),
}
ELSEWHERE = "other-points", "", "Print the numbers at which you call `f`, for two different values of h."


@exercise
def slope(answer):
    for case, (f, w, h) in CASES.items():
        points = []

        def noted(x, f=f, points=points):
            points.extend(map(float, x if getattr(x, "ndim", 0) else [x]))  # f may be called with an array
            return f(x)

        got, below, above = number(answer(noted, w, h)), f(w - h), f(w + h)
        right = (above - below) / (2 * h)
        same(f"{case}: the slope", got, right, wrong=[
            ("parentheses", above - below / (2 * h), "", "Python divides before it subtracts. Compute the rise first."),
            ("no-run", above - below, "", "A slope is a rise divided by a run. How far apart are your two points?"),
            ("wrong-sign", -right, "", "Take a function that rises: which of the two values is larger?"),
            ("half-distance", 2 * right, "", "Draw the two points with w between them. How far apart are they?"),
            ("double-distance", right / 2, "", "Draw the two points that you use. How far apart are they?"),
            ("one-sided", (f(w) - below) / h, "", "One of your two points is w itself, so you look to one side only."),
            ("one-sided", (above - f(w)) / h, "", "One of your two points is w itself, so you look to one side only."),
        ])  # fmt: skip
        sides = [any(abs(x - side) < 0.01 * h for x in points) for side in (w - h, w + h)]
        same(f"{case}: asked at w - h, and at w + h", sides, [True, True], ELSEWHERE)
    return "2 parabolas, 2 distances: the slope is right, and you looked to both sides of w."
