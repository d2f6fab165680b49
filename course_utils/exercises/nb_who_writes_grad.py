"""The exercise of *who writes grad*: a guard names the parameters with a gradient left."""

from copy import deepcopy
from math import inf, nan

import torch
from torch import nn

from course_utils.exercises.judging import CHANGED_INPUT, changed, exercise, read_all, returned, same, wrong_type

CLEAN = {"none": None, "zero": (0, 0, 0)}  # by layer, what `.grad` holds
DIRTY = {"first": (3, 4, 5), "partial": (0, 3, 0), "negative": (-3, -4, -5), "mixed": (2, -1, -1), "frozen": (3, 4, 5)}
TRICKY = {"nan": (0, nan, 0), "inf": (0, inf, 0), "small": (1e-30, 0, 0)}
HINT = "Which question do 3, -3, infinity and NaN answer with yes, and only 0 with no? Ask it of each number."


@exercise
def dirty(answer):
    every = DIRTY | CLEAN | TRICKY
    model = nn.ModuleDict({layer: nn.Linear(1, 3, dtype=torch.float32) for layer in every})
    for name, p in model.named_parameters():
        held = every[name.partition(".")[0]]
        p.grad = None if held is None else torch.tensor(held, dtype=p.dtype).view_as(p)
    model["frozen"].requires_grad_(False)

    def state():
        return [held for p in model.parameters() for held in (p.detach(), p.grad) if held is not None]

    before = deepcopy(state())
    names = read_all(returned(answer(model), "a list of names"), at_most=50)
    if not isinstance(names, list | set) or not all(isinstance(name, str) for name in names):
        raise wrong_type(f"expected a list of parameters' names, as text, got {names!r}.")
    for name, _ in model.named_parameters():
        layer = name.partition(".")[0]
        bug = "wrong-names" if name in names else f"misses-{layer}"
        what = f"how often you name {name}, in whose .grad was {every[layer]}"
        same(what, [*names].count(name), int(layer not in CLEAN), (bug, "", HINT))
    same("names of no parameter", sorted({*names} - {*dict(model.named_parameters())}), [], ("wrong-names", "", HINT))
    same("input", changed(state(), before), "", CHANGED_INPUT)
    return "gradients, None, zeros, biases, frozen ones, NaN, infinity, small ones: the guard sees what is there."
