"""The exercise of *who writes grad*: a guard names the parameters with a gradient left."""

from copy import deepcopy
from math import inf, nan

import torch
from torch import nn

from course_utils.exercises.judging import exercise, returned, same, unchanged

HELD = {  # by parameter, what `.grad` holds
    "none": None, "zero": (0, 0, 0), "weight": (3, 4, 5), "bias": (3, 4, 5), "partial": (0, 3, 0),
    "negative": (-3, -4, -5), "mixed": (2, -1, -1), "frozen": (3, 4, 5), "nan": (0, nan, 0), "inf": (0, inf, 0),
    "small": (1e-30, 0, 0),
}  # fmt: skip
CLEAN = "none", "zero"
HINT = "Which question do 3, -3, infinity and NaN answer with yes, and only 0 with no? Ask it of each number."


@exercise("gradients, None, zeros, biases, frozen ones, NaN, infinity, small ones: the guard sees what is there.")
def dirty(answer):
    model = nn.ParameterDict({name: torch.ones(3, dtype=torch.float32) for name in HELD})
    for name, held in HELD.items():
        model[name].grad = None if held is None else torch.tensor(held, dtype=torch.float32)
    model["frozen"].requires_grad_(False)

    def state():
        return [(p.detach(), p.grad) for p in model.values()]

    before = deepcopy(state())
    names = returned(answer(model), "a list of names")
    for name, held in HELD.items():
        bug = "wrong-names" if name in names else f"misses-{name}"
        what = f"how often you name {name}, in whose .grad was {held}"
        same(what, [*names].count(name), int(name not in CLEAN), bug, HINT)
    same("names of no parameter", [name for name in names if name not in HELD], [], "wrong-names", HINT)
    unchanged(state(), before)
