"""The exercises of notebook 01: a slope by finite differences, and the backward of a product."""

from collections.abc import Callable

from course_utils.practice.exercises.verdict import Mistake, number

# Exercise of notebook 01: a derivative by finite differences.


def _slope(answer: Callable) -> str:
    cases = [(lambda w: w**3, lambda w: 3 * w**2, w) for w in (-1.5, 0.5, 2.0)]
    cases += [(lambda w: 5.0 - 2.0 * w, lambda w: -2.0, 1.0), (lambda w: w**2, lambda w: 2 * w, 0.0)]
    for f, derivative, w in cases:
        for h in (1e-2, 1e-3):
            right, got = derivative(w), number(answer(f, w, h))
            if abs(got - right) <= 2 * h**2:
                continue
            case = f"at w = {w} with h = {h} the slope is {right:.6g}, your function says {got:.6g}"
            if any(abs(got / run - right) <= 2 * h**2 for run in (2 * h, h**2, 4 * h**2)):
                raise Mistake("no-run", f"{case}: the difference has to be divided by the distance 2h of the points.")
            if abs(got + right) <= 2 * h**2:
                raise Mistake("wrong-sign", f"{case}: the sign is turned round.")
            if right and abs(got / right - 2) < 0.1:
                raise Mistake("half-distance", f"{case}, twice as much: from w - h to w + h the distance is 2h, not h.")
            if right and abs(got / right - 0.5) < 0.1:
                raise Mistake("double-distance", f"{case}, half as much: the distance that you divide by is too long.")
            if abs(got - right) < 10 * h:
                raise Mistake("one-sided", f"{case}: off by about h. Look as far to the left of w as to the right.")
            raise Mistake("wrong-value", f"{case}.")
    return "5 functions, 2 distances: the slope is right to the order of h squared."


# Exercise of notebook 01: the backward of a product in the autograd of 40 lines.


class _Number:
    def __init__(self, data: float, grad: float = 0.0):
        self.data, self.grad = data, grad


def _product_backward(answer: Callable) -> str:
    for x, y, upstream, before in ((2.0, 5.0, 1.0, 0.0), (2.0, 5.0, 3.0, 0.0), (2.0, 5.0, 3.0, 7.0)):
        a, b, out = _Number(x, before), _Number(y, before), _Number(x * y, upstream)
        answer(a, b, out)
        got, right = (number(a.grad), number(b.grad)), (before + y * upstream, before + x * upstream)
        if got == right:
            continue
        case = f"a = {x}, b = {y}, out.grad = {upstream}, both .grad = {before} before: expected {right}, got {got}"
        if got == (before, before):
            raise Mistake("not-attempted", f"{case}: neither .grad has changed yet.")
        if before and got == (right[0] - before, right[1] - before):
            raise Mistake("assigns", f"{case}. What was in .grad is lost: add to it, a value may be used twice.")
        if got == (before + x * upstream, before + y * upstream):
            raise Mistake("swapped", f"{case}. The factors are swapped: da of a * b is b.")
        if got == (before + y, before + x):
            raise Mistake("no-chain-rule", f"{case}. The slope of what comes after, out.grad, must multiply.")
        raise Mistake("wrong-value", f"{case}.")
    a, out = _Number(3.0), _Number(9.0, 1.0)
    answer(a, a, out)
    if number(a.grad) != 6.0:
        raise Mistake(
            "assigns", f"the product a * a at a = 3 has slope 6, got {a.grad}: the second use must add to the first."
        )
    return "distinct factors, a later slope, an earlier gradient, and a * a: all right."


JUDGES = {"slope": _slope, "product_backward": _product_backward}
