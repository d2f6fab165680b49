"""Answers to "slope" and "product_backward"."""

import math
from itertools import product

import torch

from answers import outcomes, right, wrong


@right("slope")
def slope(f, w, h):
    rise = f(w + h) - f(w - h)
    return rise / (2 * h)


@right("slope")
def slope_from_the_mean_of_two_sides(f, w, h):
    right = (f(w + h) - f(w)) / h
    left = (f(w) - f(w - h)) / h
    return 0.5 * (left + right)


@right("slope")
def slope_from_four_points(f, w, h):
    return (8 * (f(w + h) - f(w - h)) - (f(w + 2 * h) - f(w - 2 * h))) / (12 * h)


wrong("slope", "one-sided")(lambda f, w, h: (f(w + h) - f(w)) / h)
wrong("slope", "half-distance")(lambda f, w, h: (f(w + h) - f(w - h)) / h)
wrong("slope", "double-distance")(lambda f, w, h: (f(w + h) - f(w - h)) / (4 * h))
wrong("slope", "no-run")(lambda f, w, h: f(w + h) - f(w - h))
wrong("slope", "no-run")(lambda f, w, h: (f(w + h) - f(w - h)) / 2 * h)
wrong("slope", "wrong-sign")(lambda f, w, h: (f(w - h) - f(w + h)) / (2 * h))


@outcomes("slope")
def outcomes_of_slope(answer):
    for f, w, h in product((lambda w: w**4 - w, math.sin, math.exp), (-0.7, 0.0, 1.3), (1e-1, 1e-2)):
        yield lambda f=f, w=w, h=h: [answer(f, w, h)]


@right("product_backward")
def product_backward(a, b, out):
    a.grad += b.data * out.grad
    b.grad += a.data * out.grad


@right("product_backward")
def product_backward_without_augmented_assignment(a, b, out):
    a.grad = a.grad + out.grad * b.data
    b.grad = b.grad + out.grad * a.data


@right("product_backward")
def product_backward_in_a_loop(a, b, out):
    for one, other in ((b, a.data), (a, b.data)):
        one.grad += other * out.grad


@wrong("product_backward", "assigns")
def stores(a, b, out):
    a.grad = b.data * out.grad
    b.grad = a.data * out.grad


@wrong("product_backward", "assigns")
def forgets_that_both_may_be_one(a, b, out):
    before_a, before_b = a.grad, b.grad
    a.grad = before_a + b.data * out.grad
    b.grad = before_b + a.data * out.grad


@wrong("product_backward", "swapped")
def takes_its_own_factor(a, b, out):
    a.grad += a.data * out.grad
    b.grad += b.data * out.grad


@wrong("product_backward", "no-chain-rule")
def ignores_what_comes_after(a, b, out):
    a.grad += b.data
    b.grad += a.data


class Number:
    def __init__(self, data, grad):
        self.data, self.grad = data, grad


@outcomes("product_backward", reference=product_backward)
def outcomes_of_product_backward(answer):
    numbers = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).tolist()
    for x, y, upstream, one, two, _ in numbers:

        def run(a, b, out):
            answer(a, b, out)
            return [a.data, a.grad, b.data, b.grad, out.data, out.grad]

        yield lambda x=x, y=y, u=upstream, p=one, q=two: run(Number(x, p), Number(y, q), Number(x * y, u))
        shared = Number(x, one)
        yield lambda x=x, u=upstream, shared=shared: run(shared, shared, Number(x * x, u))
