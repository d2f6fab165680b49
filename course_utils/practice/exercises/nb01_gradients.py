"""The exercises of notebook 01: a slope by finite differences, and the backward pass of a product."""

from collections.abc import Callable

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, compare, number


@exercise(
    "slope",
    hints={
        "no-run": "A slope is a rise divided by a run. How far apart are your two points?",
        "half-distance": "Draw the two points on a line, with w between them, and read off the distance from one to "
        "the other.",
        "double-distance": "Draw the two points on a line, with w between them, and read off the distance from one to "
        "the other.",
        "one-sided": "One of your two points is w itself, so you look to one side only.",
        "wrong-sign": "Take a function that rises, and ask which of the two values is larger.",
    },
)
def _slope(answer: Callable) -> str:
    cases = [(lambda w: w**3, lambda w: 3 * w**2, w) for w in (-1.5, 0.5, 2.0)]
    cases += [(lambda w: 5.0 - 2.0 * w, lambda w: -2.0, 1.0), (lambda w: w**2, lambda w: 2 * w, 0.0)]
    for f, derivative, w in cases:
        for h in (1e-2, 1e-3):
            right, got = derivative(w), number(answer(f, w, h))
            if not abs(got - right) <= 2 * h**2:  # also for NaN
                case = f"at w = {w} with h = {h} the slope is {right:.6g}, your function says {got:.6g}"
                raise _slope_mistake(right, got, h, case)
    return "5 functions, 2 distances: the slope is right to the order of h squared."


def _slope_mistake(right: float, got: float, h: float, case: str) -> Mistake:
    if any(abs(got / run - right) <= 2 * h**2 for run in (2 * h, h**2, 4 * h**2)):
        return Mistake("no-run", f"{case}: the difference has to be divided by the distance 2h of the points.")
    if abs(got + right) <= 2 * h**2:
        return Mistake("wrong-sign", f"{case}: the sign is reversed.")
    if right and abs(got / right - 2) < 0.1:
        return Mistake("half-distance", f"{case}, twice as much: from w - h to w + h the distance is 2h, not h.")
    if right and abs(got / right - 0.5) < 0.1:
        return Mistake("double-distance", f"{case}, half as much: the distance that you divide by is too long.")
    if abs(got - right) < 10 * h:
        return Mistake("one-sided", f"{case}: off by about h. Look as far to the left of w as to the right.")
    return Mistake("wrong-value", f"{case}.")


class _Number:
    """A value of the autograd of 40 lines that the notebook builds."""

    def __init__(self, data: float, grad: float = 0.0):
        self.data, self.grad = data, grad


@exercise(
    "product_backward",
    hints={
        "not-attempted": "Which two attributes must have changed when your function returns?",
        "swapped": "If b is 4 and a grows by a little, how much faster does a * b grow? Which of the two numbers did "
        "you use?",
        "no-chain-rule": "You pass on the slope of `out` along a. The task asks for the slope of the final result, so "
        "something must multiply.",
        "assigns": "It is the operator that this notebook is about. What happens to the first slope when a value is "
        "used twice, as in a * a?",
    },
)
def _product_backward(answer: Callable) -> str:
    for x, y, slope, old in ((2.0, 5.0, 1.0, 0.0), (2.0, 5.0, 3.0, 0.0), (2.0, 5.0, 3.0, 7.0)):
        a, b, out = _Number(x, old), _Number(y, old), _Number(x * y, slope)
        answer(a, b, out)
        got, right = (number(a.grad), number(b.grad)), (old + y * slope, old + x * slope)
        case = f"a = {x}, b = {y}, out.grad = {slope}, both .grad = {old} before: expected {right}, got {got}"
        assigned = "what was in .grad is lost: add to it, a value may be used twice"
        known = (
            ("not-attempted", "neither .grad has changed yet", (old, old)),
            ("assigns", assigned, (y * slope, x * slope)),
            ("swapped", "the factors are swapped: da of a * b is b", (old + x * slope, old + y * slope)),
            ("no-chain-rule", "the slope of what comes after, out.grad, must multiply", (old + y, old + x)),
        )
        compare(got, right, case, known, rtol=0.0, atol=0.0)
    a, out = _Number(3.0), _Number(9.0, 1.0)
    answer(a, a, out)
    if number(a.grad) != 6.0:
        hint = f"the product a * a at a = 3 has slope 6, got {a.grad}: the second use must add to the first."
        raise Mistake("assigns", hint)
    return "distinct factors, a later slope, an earlier gradient, and a * a: all right."
