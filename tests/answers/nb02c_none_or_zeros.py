"""Answers to "dirty", a guard that names the parameters whose gradient is not clean."""

import math
from itertools import product

import torch

from answers import outcomes, right, wrong
from course_utils import mlp


@right("dirty")
def dirty(model):
    names = []
    for name, p in model.named_parameters():
        if p.grad is not None and torch.count_nonzero(p.grad) > 0:
            names.append(name)
    return names


@right("dirty")
def dirty_in_one_line(model):
    return [name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()]


@right("dirty")
def dirty_by_comparison(model):
    held = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return [name for name, grad in held.items() if not torch.equal(grad, torch.zeros_like(grad))]


wrong("dirty", "crashes-on-none")(lambda model: [name for name, p in model.named_parameters() if p.grad.any()])
wrong("dirty", "crashes-on-none")(
    lambda model: [name for name, p in model.named_parameters() if torch.count_nonzero(p.grad)]
)
wrong("dirty", "zeros-are-clean")(lambda model: [name for name, p in model.named_parameters() if p.grad is not None])
wrong("dirty", "signs-cancel")(
    lambda model: [name for name, p in model.named_parameters() if p.grad is not None and p.grad.sum() != 0]
)
wrong("dirty", "misses-nan")(
    lambda model: [name for name, p in model.named_parameters() if p.grad is not None and p.grad.norm() > 0]
)
wrong("dirty", "misses-small")(
    lambda model: [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.norm() < 1e-8]
)
wrong("dirty", "misses-gradients")(lambda model: [])
wrong("dirty", "wrong-type")(lambda model: any(p.grad is not None for p in model.parameters()))


@wrong("dirty", "changes-gradients")
def clears_what_it_sees(model):
    names = dirty(model)
    model.zero_grad()
    return names


@outcomes("dirty", reference=dirty)
def outcomes_of_dirty(answer):
    choices = (None, 0.0, 1.0, -1e-9, math.nan, math.inf)
    for first, second, first_entry in product(choices, choices, choices[1:]):
        model = mlp(1, 2).double()
        for p, fill in zip(model.parameters(), (first, second), strict=True):
            if fill is not None:
                p.grad = torch.full_like(p, fill)
                p.grad[0] = first_entry
        yield lambda model=model: answer(model)
