"""The exercise of notebook 02c: a guard that names the parameters whose gradient is not clean."""

from collections.abc import Callable, Sequence
from reprlib import repr

import torch
from torch import nn

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake

_INF, _NAN = float("inf"), float("nan")

# What .grad holds, whether that is dirty, and the name and hint of the bug of a guard that says otherwise.
_CASES = (
    (None, False, "none-is-clean", "where .grad is None there is nothing to look at"),
    ((0.0, 0.0), False, "zeros-are-clean", "zeros add nothing to the next backward pass"),
    ((3.0, 4.0), True, "misses-gradients", "it holds a gradient of an earlier backward pass"),
    ((2.0, -2.0), True, "signs-cancel", "its entries add up to 0 but are not 0"),
    ((0.0, _NAN), True, "misses-nan", "a NaN stays in every later sum"),
    ((-_INF, 0.0), True, "misses-inf", "an infinity stays in every later sum"),
    ((1e-30, 0.0), True, "misses-small", "small is not zero"),
)


@exercise(
    "dirty",
    hints={
        "crashes-on-none": "Before a backward pass `.grad` is None, and None has no entries. What must you ask before "
        "you look at them?",
        "none-is-clean": "Where `.grad` is None there is no gradient that could spoil the next sum.",
        "zeros-are-clean": "Having a gradient does not make a parameter dirty. What must be in it?",
        "misses-gradients": "Print what your function reads for this parameter. Is it `p.grad`?",
        "signs-cancel": "The script that this notebook cites took a gradient for unused if its `sum()` was 0. Ask "
        "about each number, not about their sum.",
        "misses-nan": 'A comparison with NaN is never true, except "not equal". Which question is answered "yes" '
        'by 3, by infinity and by NaN, and "no" only by 0?',
        "misses-inf": 'Which question about a number is answered "yes" by 3, by infinity and by NaN, and "no" only '
        "by 0?",
        "misses-small": "Is 1e-30 equal to 0? Which comparison needs no threshold?",
        "changes-gradients": "Something in your function writes: an assignment to `.grad`, or a method whose name ends "
        "in an underscore.",
    },
)
def _dirty(answer: Callable) -> str:
    for held, is_dirty, bug, hint in _CASES:
        case = f"a model whose 1.weight.grad is {None if held is None else list(held)}"
        names, expected = _names(answer, held, case), ["1.weight"] if is_dirty else []
        if names != expected:
            raise Mistake(bug, f"{case}: expected {expected}, got {names}; {hint}.")
    return "gradients, None, frozen, zeros, signs that cancel, NaN, infinity: the guard sees what is there."


def _names(answer: Callable, held: Sequence[float] | None, case: str) -> list[str]:
    """What the guard says about a model with this gradient, which it must leave as it is."""
    # A clean parameter before the one that is looked at, and a frozen one, which has no gradient, after it.
    model = nn.Sequential(*(nn.Linear(*sizes, bias=False) for sizes in ((1, 2), (2, 1), (1, 2)))).double()
    model[2].weight.requires_grad_(False)
    if held is not None:
        model[0].weight.grad = torch.zeros_like(model[0].weight)
        model[1].weight.grad = torch.tensor([held], dtype=torch.float64)
    before = _bits(model)
    try:
        names = answer(model)
    except Exception as error:
        bug = "crashes-on-none" if "NoneType" in str(error) else "raises"
        raise Mistake(bug, f"{case}: your function raised {type(error).__name__}: {error}") from error
    if names is None:
        raise Mistake("not-attempted", "your function returned None; it should return a list of names.")
    if _bits(model) != before:
        raise Mistake("changes-gradients", f"{case}: a guard looks, it must not change .grad.")
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(x, str) for x in names):
        raise Mistake("wrong-type", f"{case}: expected a list of parameter names, got {repr(names)}.")
    return list(names)


def _bits(model: nn.Module) -> list[list[int] | None]:
    """Every gradient bit by bit, so that NaN equals NaN."""
    return [None if p.grad is None else p.grad.view(torch.int64).tolist() for p in model.parameters()]
