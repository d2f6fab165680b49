"""The exercises of notebook 01: a slope by finite differences, and the backward pass of a product."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from numbers import Real
from typing import Any

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


class Value:
    """A value of a small autograd, with what the exercise needs of it."""

    def __init__(self, data: float, grad: float = 0.0):
        self.data, self.grad = data, grad


_OUTER = "the slope of what comes after, out.grad, must multiply"


@exercise(
    "product_backward",
    hints={
        "not-attempted": "Which two attributes must have changed when your function returns? A local name for a number "
        "changes neither.",
        "not-stored": "Nobody reads what the function returns. Where should the two slopes go?",
        "swapped": "If b is 4 and a grows by a little, how much faster does a * b grow? Which of the two numbers did "
        "you use?",
        "no-chain-rule": "You pass on the slope of `out` along a. The task asks for the slope of the final result, so "
        "something must multiply.",
        "no-local-slope": "You pass on the slope along `out`. How fast does `out` itself change with a?",
        "assigns": "It is the operator that this notebook is about. What happens to the first slope when a value is "
        "used twice, as in a * a?",
        "one-factor": "Both factors change the product. Which line changes `a.grad`, and which one `b.grad`?",
        "wrong-sign": "Let a grow by a little: does a * b grow or shrink if b is positive?",
        "divides": "What is `out.data / a.data` where a is 0? And which of your numbers did you want to get by it?",
        "changed-input": "Only `a.grad` and `b.grad` should change. Which line writes to something else?",
        "low-precision": "Which line rounds, or makes a float32? Add the product with all the digits that it has.",
        "wrong-value": "Take the numbers above and work out by hand what `a.grad` should grow by. Then print what you "
        "add to it.",
    },
)
def _product_backward(answer: Callable) -> str:
    cases = (  # a, b, out.grad, and what a.grad and b.grad hold before
        (2.0, 5.0, 3.0, 7.0, 11.0),
        (1 / 3, -0.7, 1 / 7, 0.0, 0.0),
        (2.0, 5.0, 0.0, 1.0, 2.0),
        (3.0, 3.0, 5.0, 1.0, 2.0),
        (0.0, 5.0, 3.0, 1.0, 2.0),
    )
    for x, y, slope, old_a, old_b in cases:
        a, b, out = Value(x, old_a), Value(y, old_b), Value(x * y, slope)
        case = f"a = {x:.4g}, b = {y:.4g}, out.grad = {slope:.4g}, .grad = {old_a} and {old_b} before"
        returned = _run(answer, a, b, out, case)
        got, right = (number(a.grad), number(b.grad)), (old_a + y * slope, old_b + x * slope)
        known = [*_wrong_products(x, y, slope, old_a, old_b), *lost_digits(got, right)]
        if (x, y, slope) == (2.0, 5.0, 3.0):
            known.insert(0, _idle(returned, (old_a, old_b)))
        if x == 0:
            known.insert(0, ("divides", "out.data / a.data is no slope where a is 0", (old_a, got[1])))
        compare(got, right, f"{case}: expected {_and(right)}, got {_and(got)}", known, rtol=1e-9, atol=1e-12)
    a, out = Value(3.0, 7.0), Value(9.0, 5.0)
    _run(answer, a, a, out, "a * a")
    case = f"the product a * a, a = 3, out.grad = 5, a.grad = 7 before: expected 37, got {a.grad}"
    lost = "the gradient of one of the two uses is lost. The second must add to the first"
    known = each_of("assigns", lost, (22.0, 15.0, 30.0)) + each_of("no-chain-rule", _OUTER, (13.0, 10.0))
    compare(number(a.grad), 37.0, case, known)
    return "distinct factors, a later slope, an earlier gradient, 0, and a * a: all right."


def _run(answer: Callable, a: Value, b: Value, out: Value, case: str) -> object:
    """Runs an answer, which may change nothing but the `.grad` of the two factors."""
    names = ("a.data", "b.data", "out.data", "out.grad")
    before = (a.data, b.data, out.data, out.grad)
    try:
        returned = answer(a, b, out)
    except ZeroDivisionError:
        raise Mistake("divides", f"{case}: your function divides by 0.") from None
    for name, old, now in zip(names, before, (a.data, b.data, out.data, out.grad), strict=True):
        if now is not old and now != old:
            raise Mistake("changed-input", f"{case}: {name} was {old:.4g} and is {now} after your function.")
    return returned


def _idle(returned: object, old: tuple[float, float]) -> tuple[str, str, tuple[float, float]]:
    if returned is None or returned is ...:
        return "not-attempted", "neither .grad has changed yet", old
    return "not-stored", "neither .grad has changed; your function returns something instead", old


def _wrong_products(x: float, y: float, slope: float, old_a: float, old_b: float) -> Iterator[tuple[str, str, Any]]:
    """What known bugs leave in the two `.grad`, whether they add to what was there or not."""
    to_a, to_b = y * slope, x * slope
    lost = "what was in .grad is lost: add to it, a value may be used twice"
    slips = (
        *each_of("swapped", "the factors are swapped: the slope of a * b along a is b", [(to_b, to_a)]),
        *each_of(
            "no-chain-rule", _OUTER, [(y, x), (to_a, x), (y, to_b), (y + slope, x + slope), (x * y * y, x * x * y)]
        ),
        *each_of("no-local-slope", "out.grad alone is the slope along a sum", [(slope, slope)]),
        *each_of(
            "one-factor",
            "only one of the factors gets its gradient",
            [(to_a, 0), (0, to_b), (2 * to_a, 0), (to_a + to_b, 0)],
        ),
        *each_of("wrong-sign", "the slope is subtracted", [(-to_a, -to_b)]),
    )
    olds = ((old_a, old_b), (old_a, 0.0), (0.0, old_b), (0.0, 0.0))
    yield from each_of("assigns", lost, [(p + to_a, q + to_b) for p, q in olds[1:]])
    for bug, hint, (one, two) in slips:
        yield from each_of(bug, hint, [(p + one, q + two) for p, q in olds])


def _and(values: tuple[float, float]) -> str:
    return " and ".join(f"{value:.10g}" for value in values)
