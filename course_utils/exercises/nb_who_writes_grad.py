"""The exercise of *who writes grad*: a guard names the parameters with a gradient left."""

from copy import deepcopy
from math import inf, nan

import torch
from torch import nn

from course_utils.exercises.judging import Mistake, agree, exercise, read_all, returned, same, wrong_type

ONLY_0 = 'Which question about a number is answered "yes" by 3, by infinity and by NaN, and "no" only by 0?'
HELD = {  # what .grad holds where that is not None everywhere; the mistake of a guard that misjudges it, and a hint
    "first.weight": ((3, 4, 5), "misses-gradients", "What does your function read for this parameter? Is it `p.grad`?"),
    "first.bias": ((3, 4, 5), "misses-bias", "How do you choose the parameters? Each of them can hold a gradient."),
    "none.weight": (None, "none-is-clean", "What does your condition say of None, which cannot spoil the next sum?"),
    "zero.weight": ((0, 0, 0), "zeros-are-clean", "Having one doesn't make a parameter dirty. What must be in it?"),
    "partial.weight": ((0, 3, 0), "misses-partial", "Must all entries differ from 0, or is one enough?"),
    "negative.weight": ((-3, -4, -5), "misses-negative", "Which numbers are neither greater than 0 nor equal to it?"),
    "mixed.weight": ((2, -1, -1), "signs-cancel", "Ask about each number, not about their sum."),
    "nan.weight": ((0, nan, 0), "misses-nan", ONLY_0),
    "infinite.weight": ((0, inf, 0), "misses-inf", ONLY_0),
    "small.weight": ((1e-30, 0, 0), "misses-small", "A tolerance, a square and a cast can all make 1e-30 equal to 0."),
    "frozen.weight": ((3, 4, 5), "misses-frozen", "`requires_grad` is about the next pass. What is in `.grad`?"),
}
WRITES = "What in your function writes? A method whose name ends in an underscore does, and so does an assignment."
FIRST = "Does your loop go on after its first name, and after a None? Look at where it can end."
NAMES = "Print the names that `model.named_parameters()` gives, and compare yours with them."


@exercise
def dirty(answer):
    model = nn.ModuleDict({name.partition(".")[0]: nn.Linear(1, 3, dtype=torch.float32) for name in HELD})
    model["frozen"].requires_grad_(False)
    for name, (held, *_) in HELD.items():
        p = model.get_parameter(name)
        p.grad = None if held is None else torch.tensor(held, dtype=p.dtype).view_as(p)

    def state():
        return [(p.detach(), p.grad, p.requires_grad) for p in model.parameters()]

    before = deepcopy(state())
    names = read_all(returned(answer(model), "a list of names"), at_most=50)
    if not isinstance(names, list | set) or not all(isinstance(name, str) for name in names):
        raise wrong_type(f"expected a list of parameters' names, as text, got {names!r}.")
    if not agree(state(), before, 0.0, 0.0):
        raise Mistake("changes-gradients", "your guard has changed `.grad` or a parameter.", WRITES)
    want = [name for name in HELD if name not in ("none.weight", "zero.weight")]
    if not {*names} <= {*dict(model.named_parameters())}:
        raise Mistake("wrong-names", f"not all of {list(names)} are names of parameters.", NAMES)
    if names and list(names) in (want[:1], want[:2]):  # the third one comes after a None
        bug = "first-only" if len(names) == 1 else "stops-at-none"
        raise Mistake(bug, f"{' and '.join(names)} and nothing after {'it' if len(names) == 1 else 'them'}.", FIRST)
    for name, (held, bug, hint) in HELD.items():
        if (name in names) != (name in want):
            is_named = "is named" if name in names else "is not named"
            raise Mistake(bug, f"{name} holds {held and list(held)}, and {is_named}.", hint)
    same("the names", sorted(names), sorted(want), ("named-twice", "", "How often is a name added?"))
    return "gradients, None, zeros, biases, frozen ones, NaN, infinity, small ones: the guard sees what is there."
