"""Answers to "slope" and "product_backward"."""

from fractions import Fraction

import numpy as np
import torch

from answers import edited, right, wrong


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
wrong("slope", "one-sided")(lambda f, w, h: (f(w) - f(w - h)) / h)
wrong("slope", "half-distance")(lambda f, w, h: f(w + h) / h - f(w - h) / h)
wrong("slope", "double-distance")(lambda f, w, h: (f(w + h) - f(w)) / (2 * h))
wrong("slope", "wrong-sign")(lambda f, w, h: (f(w) - f(w + h)) / h)
wrong("slope", "wrong-sign")(lambda f, w, h: abs(f(w + h) - f(w - h)) / (2 * h))
wrong("slope", "adds")(lambda f, w, h: (f(w + h) + f(w - h)) / (2 * h))
wrong("slope", "adds")(lambda f, w, h: (f(w + h) + f(w - h)) / 2)
wrong("slope", "parentheses")(lambda f, w, h: f(w + h) - f(w - h) / (2 * h))
wrong("slope", "parentheses")(lambda f, w, h: f(w + h) - f(w - h) / 2 * h)
wrong("slope", "no-run")(lambda f, w, h: (f(w + h) - f(w - h)) / 2)
wrong("slope", "no-run")(lambda f, w, h: f(w + h) - f(w))
wrong("slope", "low-precision")(lambda f, w, h: round((f(w + h) - f(w - h)) / (2 * h), 3))
wrong("slope", "low-precision")(lambda f, w, h: round((f(w + h) - f(w - h)) / (2 * h), 6))
wrong("slope", "other-points")(lambda f, w, h: slope(f, w, 1e-5))
wrong("slope", "other-points")(lambda f, w, h: slope(f, w, h / 2))
wrong("slope", "wrong-value")(lambda f, w, h: max(slope(f, w, h), 0.0))
wrong("slope", "wrong-value")(lambda f, w, h: 3 * w**2)
wrong("slope", "wrong-type")(lambda f, w, h: f"{slope(f, w, h)} per step")
wrong("slope", "wrong-type")(lambda f, w, h: (f(w + h) - f(w), f(w) - f(w - h)))
wrong("slope", "not-attempted")(lambda f, w, h: print("rise", f(w + h) - f(w - h)))
wrong("slope", "raises")(lambda f, w, h: f(w + h) - f(w - h) / 2 * H)  # noqa: F821
wrong("slope", "raises")(lambda f, w, h: (f[w + h] - f[w - h]) / (2 * h))
wrong("slope", "half-distance")(lambda f, w, h: (f(w + h) - f(w - h)) / h)
wrong("slope", "double-distance")(lambda f, w, h: (f(w + h) - f(w - h)) / (4 * h))


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


@right("product_backward")
def product_backward_by_autograd(a, b, out):
    x, y = (torch.tensor(value.data, dtype=torch.float64, requires_grad=True) for value in (a, b))
    for value, grad in zip((a, b), torch.autograd.grad(x * y, (x, y)), strict=True):
        value.grad += grad.item() * out.grad


@right("product_backward")
def product_backward_that_knows_squares(a, b, out) -> None:
    if a is b:
        a.grad += 2 * a.data * out.grad
        return
    a.grad += b.data * out.grad
    b.grad += a.data * out.grad


A = "a.grad += b.data * out.grad"
B = "b.grad += a.data * out.grad"
for bug, to_a, to_b in (
    ("assigns", "a.grad = b.data * out.grad", "b.grad = a.data * out.grad"),
    ("assigns", "old = b.grad; a.grad += b.data * out.grad", "b.grad = old + a.data * out.grad"),  # a may be b
    ("swapped", "a.grad += a.data * out.grad", "b.grad += b.data * out.grad"),
    ("swapped", "a.grad = a.data * out.grad", "b.grad = b.data * out.grad"),
    ("no-chain-rule", "a.grad += b.data", "b.grad += a.data"),
    ("no-chain-rule", f"if a is b: a.grad += 2 * a.data; return\n    {A}", B),
    ("no-local-slope", "a.grad += out.grad", "b.grad += out.grad"),
    ("one-factor", A, "pass"),
    ("one-factor", A, A),
    ("wrong-sign", "a.grad -= b.data * out.grad", "b.grad -= a.data * out.grad"),
    ("divides", "a.grad += out.data / a.data * out.grad", "b.grad += out.data / b.data * out.grad"),
    ("changed-input", A, f"{B}; out.grad = 0.0"),
    ("changed-input", f"out.grad = 1.0; {A}", B),
    ("low-precision", "a.grad += round(b.data * out.grad, 3)", "b.grad += round(a.data * out.grad, 3)"),
    ("low-precision", "a.grad += int(b.data * out.grad)", "b.grad += int(a.data * out.grad)"),
    ("not-stored", "return b.data * out.grad, a.data * out.grad", "pass"),
    ("not-stored", "return a.grad + b.data * out.grad, b.grad + a.data * out.grad", "pass"),
    ("not-attempted", "out._backward = lambda: product_backward(a, b, out)", "pass"),
    ("not-attempted", "grad = a.grad; grad += b.data * out.grad", "pass"),
    ("raises", "a.gard += b.data * out.grad", B),
    ("raises", "a.grad += b * out.grad", B),
    ("wrong-value", "a.grad += a.grad + b.data * out.grad", "b.grad += b.grad + a.data * out.grad"),
    ("wrong-value", "a.grad += b.grad * out.grad", "b.grad += a.grad * out.grad"),
):
    wrong("product_backward", bug)(edited(product_backward, (A, to_a), (f"\n    {B}", f"\n    {to_b}")))


@wrong("product_backward", "divides")
def divides_unless_it_is_zero(a, b, out):
    for factor in (a, b):
        if factor.data:
            factor.grad += out.data / factor.data * out.grad
