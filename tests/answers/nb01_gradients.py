"""Answers to "slope" and "product_backward"."""

import math
from collections.abc import Callable
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
def slope_from_the_mean_of_two_sides(f, w, h):
    right = (f(w + h) - f(w)) / h
    left = (f(w) - f(w - h)) / h
    return 0.5 * (left + right)


@right("slope")
def slope_from_four_points(f, w, h):
    return (8 * (f(w + h) - f(w - h)) - (f(w + 2 * h) - f(w - 2 * h))) / (12 * h)


@right("slope")
def slope_with_type_hints(f: Callable[[float], float], w: float, h: float) -> float:
    left, right = w - h, w + h
    return (f(right) - f(left)) / (right - left)


@right("slope")
def slope_as_a_tensor(f, w, h):
    w, h = torch.tensor([w, h], dtype=torch.float64)
    return (f(w + h) - f(w - h)) / (2 * h)


@right("slope")
def slope_of_a_fitted_line(f, w, h):
    points = [w - h, w + h]
    return np.polyfit(points, [f(point) for point in points], 1)[0]


@right("slope")
def slope_of_fractions(f, w, h):
    w, h = Fraction(w), Fraction(h)
    return (f(w + h) - f(w - h)) / (2 * h)


@right("slope")
def slope_by_numpy(f, w, h):
    points = np.linspace(w - h, w + h, 3)
    return np.gradient([f(point) for point in points], points)[1]


@right("slope")
def slope_in_small_steps(f, w, h):
    values = {}
    for sign in (-1, 1):
        values[sign] = f(w + sign * h)
    rise, run = values[1] - values[-1], 2.0 * abs(h)
    return float(rise / run)


@right("slope")
def slope_of_each_point_alone(f, w, h):
    return sum(sign * f(w + sign * h) / h for sign in (1, -1)) / 2


wrong("slope", "one-sided")(lambda f, w, h: (f(w + h) - f(w)) / h)
wrong("slope", "one-sided")(lambda f, w, h: (f(w) - f(w - h)) / h)
wrong("slope", "one-sided")(lambda f, w, h: (f(w + 2 * h) - f(w)) / (2 * h))
wrong("slope", "half-distance")(lambda f, w, h: f(w + h) / h - f(w - h) / h)
wrong("slope", "double-distance")(lambda f, w, h: (f(w + h) - f(w)) / (2 * h))
wrong("slope", "wrong-sign")(lambda f, w, h: (f(w) - f(w + h)) / h)
wrong("slope", "wrong-sign")(lambda f, w, h: abs(f(w + h) - f(w - h)) / (2 * h))
wrong("slope", "wrong-sign")(lambda f, w, h: (f(w - h) - f(w + h)) / h)
wrong("slope", "adds")(lambda f, w, h: (f(w + h) + f(w - h)) / (2 * h))
wrong("slope", "adds")(lambda f, w, h: (f(w + h) + f(w - h)) / 2)
wrong("slope", "parentheses")(lambda f, w, h: f(w + h) - f(w - h) / (2 * h))
wrong("slope", "parentheses")(lambda f, w, h: f(w + h) - f(w - h) / 2 * h)
wrong("slope", "parentheses")(lambda f, w, h: f(w + h) - f(w - h) / h)
wrong("slope", "no-run")(lambda f, w, h: (f(w + h) - f(w - h)) / 2)
wrong("slope", "no-run")(lambda f, w, h: f(w + h) - f(w))
wrong("slope", "no-run")(lambda f, w, h: (f(w + h) - f(w - h)) * (2 * h))
wrong("slope", "low-precision")(lambda f, w, h: round((f(w + h) - f(w - h)) / (2 * h), 3))
wrong("slope", "low-precision")(lambda f, w, h: round((f(w + h) - f(w - h)) / (2 * h), 6))
wrong("slope", "low-precision")(lambda f, w, h: int((f(w + h) - f(w - h)) / (2 * h)))
wrong("slope", "low-precision")(lambda f, w, h: float(f"{slope(f, w, h):.4f}"))
wrong("slope", "low-precision")(lambda f, w, h: (f(w + h) - f(w - h)) // (2 * h))
wrong("slope", "low-precision")(lambda f, w, h: slope(f, torch.tensor(w, dtype=torch.float32), h))
wrong("slope", "low-precision")(lambda f, w, h: slope(f, np.float32(w), np.float32(h)))
wrong("slope", "other-points")(lambda f, w, h: slope(f, w, 1e-5))
wrong("slope", "other-points")(lambda f, w, h: slope(f, w, h / 2))
wrong("slope", "other-points")(lambda f, w, h: f(w + 1j * h).imag / h)
wrong("slope", "other-points")(lambda f, w, h: (f(w + 2 * h) - f(w - 2 * h)) / (4 * h))
wrong("slope", "wrong-value")(lambda f, w, h: max(slope(f, w, h), 0.0))
wrong("slope", "wrong-value")(lambda f, w, h: 3 * w**2)
wrong("slope", "wrong-value")(lambda f, w, h: f(w) / w if w else 0.0)
wrong("slope", "wrong-value")(lambda f, w, h: (f(h) - f(-h)) / (2 * h))
wrong("slope", "wrong-value")(lambda f, w, h: (f(w + h) - 2 * f(w) + f(w - h)) / h**2)
wrong("slope", "wrong-value")(lambda f, w, h: math.nan)
wrong("slope", "wrong-type")(lambda f, w, h: f"{slope(f, w, h)} per step")
wrong("slope", "wrong-type")(lambda f, w, h: (f(w + h) - f(w), f(w) - f(w - h)))
wrong("slope", "wrong-type")(lambda f, w, h: lambda x: (f(x + h) - f(x - h)) / (2 * h))
wrong("slope", "not-attempted")(lambda f, w, h: print("rise", f(w + h) - f(w - h)))
wrong("slope", "raises")(lambda f, w, h: f(w + h) - f(w - h) / 2 * H)  # noqa: F821
wrong("slope", "raises")(lambda f, w, h: (f[w + h] - f[w - h]) / (2 * h))
wrong("slope", "half-distance")(lambda f, w, h: (f(w + h) - f(w - h)) / h)
wrong("slope", "double-distance")(lambda f, w, h: (f(w + h) - f(w - h)) / (4 * h))
wrong("slope", "no-run")(lambda f, w, h: f(w + h) - f(w - h))
wrong("slope", "no-run")(lambda f, w, h: (f(w + h) - f(w - h)) / 2 * h)
wrong("slope", "wrong-sign")(lambda f, w, h: (f(w - h) - f(w + h)) / (2 * h))


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
def product_backward_with_pairs_in_a_list(a, b, out):
    pairs = [(a, b), (b, a)]
    for i in range(len(pairs)):
        factor, other = pairs[i]
        factor.grad = sum([factor.grad, other.data * out.grad])


@right("product_backward")
def product_backward_that_knows_squares(a, b, out) -> None:
    if a is b:
        a.grad += 2 * a.data * out.grad
        return
    a.grad += b.data * out.grad
    b.grad += a.data * out.grad


@right("product_backward")
def product_backward_with_an_inner_function(a, b, out):
    def add(value, slope):
        value.grad += slope * out.grad

    add(a, b.data)
    add(b, a.data)
    return out


@right("product_backward")
def product_backward_with_names(a, b, out):
    upstream = out.grad
    local_a, local_b = b.data, a.data
    a.grad = a.grad + local_a * upstream
    b.grad = b.grad + local_b * upstream


@right("product_backward")
def product_backward_with_setattr(a, b, out):
    for factor, slope in zip((a, b), (b.data, a.data), strict=True):
        setattr(factor, "grad", getattr(factor, "grad") + slope * out.grad)  # noqa: B009, B010


@right("product_backward")
def product_backward_by_autograd(a, b, out):
    x, y = (torch.tensor(value.data, dtype=torch.float64, requires_grad=True) for value in (a, b))
    for value, grad in zip((a, b), torch.autograd.grad(x * y, (x, y)), strict=True):
        value.grad += grad.item() * out.grad


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


@wrong("product_backward", "assigns")
def assigns_both_at_once(a, b, out):
    a.grad, b.grad = a.grad + b.data * out.grad, b.grad + a.data * out.grad


@wrong("product_backward", "assigns")
def has_one_entry_where_both_are_one(a, b, out):
    for factor, slope in {a: b.data, b: a.data}.items():
        factor.grad += slope * out.grad


@wrong("product_backward", "assigns")
def adds_once_where_both_are_one(a, b, out):
    a.grad += b.data * out.grad
    if a is not b:
        b.grad += a.data * out.grad


@wrong("product_backward", "assigns")
def writes_the_operator_the_wrong_way_round(a, b, out):
    a.grad = +b.data * out.grad
    b.grad = +a.data * out.grad


@wrong("product_backward", "assigns")
def adds_to_the_first_only(a, b, out):
    a.grad += b.data * out.grad
    b.grad = a.data * out.grad


@wrong("product_backward", "assigns")
def clears_first(a, b, out):
    a.grad = b.grad = 0.0
    product_backward(a, b, out)


@wrong("product_backward", "assigns")
def overwrites_a_square(a, b, out):
    if a is b:
        a.grad = 2 * a.data * out.grad
    else:
        product_backward(a, b, out)


@wrong("product_backward", "no-chain-rule")
def forgets_it_for_a_square(a, b, out):
    if a is b:
        a.grad += 2 * a.data
    else:
        product_backward(a, b, out)


@wrong("product_backward", "no-chain-rule")
def forgets_it_for_the_second(a, b, out):
    a.grad += b.data * out.grad
    b.grad += a.data


@wrong("product_backward", "no-chain-rule")
def assigns_without_the_chain_rule(a, b, out):
    a.grad = b.data
    b.grad = a.data


@wrong("product_backward", "no-chain-rule")
def takes_no_slope_for_one(a, b, out):
    upstream = out.grad or 1.0
    a.grad += b.data * upstream
    b.grad += a.data * upstream


@wrong("product_backward", "no-chain-rule")
def multiplies_by_the_product(a, b, out):
    a.grad += b.data * out.data
    b.grad += a.data * out.data


@wrong("product_backward", "no-chain-rule")
def adds_the_later_slope(a, b, out):
    a.grad += b.data + out.grad
    b.grad += a.data + out.grad


@wrong("product_backward", "no-local-slope")
def hands_the_slope_on_as_a_sum_does(a, b, out):
    a.grad += out.grad
    b.grad += out.grad


@wrong("product_backward", "swapped")
def swaps_and_assigns(a, b, out):
    a.grad = a.data * out.grad
    b.grad = b.data * out.grad


@wrong("product_backward", "one-factor")
def forgets_the_second_factor(a, b, out):
    a.grad += b.data * out.grad


@wrong("product_backward", "one-factor")
def repeats_the_first_line(a, b, out):
    a.grad += b.data * out.grad
    a.grad += b.data * out.grad


@wrong("product_backward", "wrong-sign")
def subtracts(a, b, out):
    a.grad -= b.data * out.grad
    b.grad -= a.data * out.grad


@wrong("product_backward", "divides")
def divides_the_product(a, b, out):
    a.grad += out.data / a.data * out.grad
    b.grad += out.data / b.data * out.grad


@wrong("product_backward", "divides")
def divides_unless_it_is_zero(a, b, out):
    for factor in (a, b):
        if factor.data:
            factor.grad += out.data / factor.data * out.grad


@wrong("product_backward", "changed-input")
def clears_the_later_slope(a, b, out):
    product_backward(a, b, out)
    out.grad = 0.0


@wrong("product_backward", "changed-input")
def begins_at_one(a, b, out):
    out.grad = 1.0
    product_backward(a, b, out)


@wrong("product_backward", "changed-input")
def multiplies_in_place(a, b, out):
    out.grad *= b.data
    a.grad += out.grad
    out.grad *= a.data / b.data
    b.grad += out.grad


@wrong("product_backward", "changed-input")
def moves_the_numbers(a, b, out):
    a.data += b.data * out.grad
    b.data += a.data * out.grad


@wrong("product_backward", "low-precision")
def rounds(a, b, out):
    a.grad += round(b.data * out.grad, 3)
    b.grad += round(a.data * out.grad, 3)


@wrong("product_backward", "low-precision")
def keeps_whole_numbers(a, b, out):
    a.grad += int(b.data * out.grad)
    b.grad += int(a.data * out.grad)


@wrong("product_backward", "low-precision")
def computes_in_float32(a, b, out):
    a.grad += (torch.tensor(b.data).float() * out.grad).item()
    b.grad += (torch.tensor(a.data).float() * out.grad).item()


@wrong("product_backward", "not-stored")
def returns_what_it_should_store(a, b, out):
    return b.data * out.grad, a.data * out.grad


@wrong("product_backward", "not-stored")
def returns_the_sums(a, b, out):
    grad_a, grad_b = a.grad, b.grad
    grad_a += b.data * out.grad
    grad_b += a.data * out.grad
    return grad_a, grad_b


@wrong("product_backward", "not-stored")
def returns_a_function(a, b, out):
    return lambda: product_backward(a, b, out)


@wrong("product_backward", "not-attempted")
def hands_over_a_function(a, b, out):
    out._backward = lambda: product_backward(a, b, out)


@wrong("product_backward", "divides")
def divides_by_almost_zero(a, b, out):
    a.grad += out.grad * out.data / (a.data + 1e-12)
    b.grad += out.grad * out.data / (b.data + 1e-12)


@wrong("product_backward", "changed-input")
def exchanges_the_factors(a, b, out):
    product_backward(a, b, out)
    a.data, b.data = b.data, a.data


@wrong("product_backward", "not-attempted")
def adds_to_local_names(a, b, out):
    grad = a.grad
    grad += b.data * out.grad


@wrong("product_backward", "raises")
def mistypes(a, b, out):
    a.gard += b.data * out.grad


@wrong("product_backward", "raises")
def multiplies_the_values_themselves(a, b, out):
    a.grad += b * out.grad


@wrong("product_backward", "wrong-value")
def adds_the_old_gradient_twice(a, b, out):
    a.grad += a.grad + b.data * out.grad
    b.grad += b.grad + a.data * out.grad


@wrong("product_backward", "wrong-value")
def multiplies_the_gradients(a, b, out):
    a.grad += b.grad * out.grad
    b.grad += a.grad * out.grad


@wrong("product_backward", "one-factor")
def takes_equal_numbers_for_one_value(a, b, out):
    if a.data == b.data:
        a.grad += 2 * a.data * out.grad
    else:
        product_backward(a, b, out)
