"""The exercise of *who writes grad*: a guard that names the parameters whose gradient is not clean."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from reprlib import repr

import torch
from torch import nn

from course_utils.practice.deadline import place
from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, read_all

_INF, _NAN = float("inf"), float("nan")
_ZEROS, _GRADIENT = (0.0, 0.0, 0.0), (3.0, 4.0, 5.0)
_EARLIER, _WEIGHT, _BIAS, _FROZEN = 0, 2, 3, 4  # places in the list of a model's parameters

# What most .grad hold (None: there is none), which parameters hold something else, and the name and hint of the bug of
# a guard that does not name exactly these.
_CASES = (
    (None, {}, "none-is-clean", "where .grad is None there is nothing to look at"),
    (_ZEROS, {}, "zeros-are-clean", "zeros add nothing to the next backward pass"),
    (_ZEROS, {_WEIGHT: _GRADIENT}, "misses-gradients", "it holds a gradient of an earlier backward pass"),
    (_ZEROS, {_WEIGHT: (0.0, 3.0, 0.0)}, "misses-partial", "one entry other than 0 is enough"),
    (_ZEROS, {_WEIGHT: (3.0, 0.0, 0.0)}, "misses-partial", "one entry other than 0 is enough"),
    (_ZEROS, {_WEIGHT: (-3.0, 0.0, 0.0)}, "misses-negative", "a negative gradient is a gradient, too"),
    (_ZEROS, {_WEIGHT: (2.0, 0.0, -2.0)}, "signs-cancel", "its entries add up to 0 but are not 0"),
    (_ZEROS, {_WEIGHT: (0.0, _NAN, 0.0)}, "misses-nan", "a NaN stays in every later sum"),
    (_ZEROS, {_WEIGHT: (-_INF, 0.0, 0.0)}, "misses-inf", "an infinity stays in every later sum"),
    (_ZEROS, {_WEIGHT: (1e-30, 0.0, 0.0)}, "misses-small", "small is not zero"),
    (None, {_WEIGHT: _GRADIENT}, "stops-at-none", "a parameter without a gradient says nothing about the next one"),
    (_ZEROS, {_BIAS: _GRADIENT}, "misses-bias", "every parameter counts, whatever its name and shape"),
    (_ZEROS, {_FROZEN: _GRADIENT}, "misses-frozen", "it is frozen, and the gradient is in .grad all the same"),
    (None, {_EARLIER: _GRADIENT, _WEIGHT: _GRADIENT}, "misses-gradients", "two parameters hold a gradient"),
    (_ZEROS, {_WEIGHT: (0.0, 1e-200, 0.0)}, "misses-small", "this is float64, in which small is not zero either"),
)


@exercise(
    "dirty",
    hints={
        "crashes-on-none": "Before a backward pass `.grad` is None, and None has no entries. What must you ask before "
        "you look at them?",
        "none-is-clean": "Where `.grad` is None there is no gradient that could spoil the next sum. What does your "
        "condition say of None?",
        "zeros-are-clean": "Having a gradient does not make a parameter dirty. What must be in it?",
        "misses-gradients": "Print what your function reads for this parameter. Is it `p.grad`?",
        "misses-partial": "Must all entries differ from 0, or is one enough? And does your function look at every "
        "entry?",
        "misses-negative": "Which numbers are neither greater than 0 nor equal to it?",
        "signs-cancel": "The script that this notebook cites took a gradient for unused if its `sum()` was 0. Ask "
        "about each number, not about their sum.",
        "misses-nan": 'A comparison with NaN is never true, except "not equal". Which question is answered "yes" by 3, '
        'by infinity and by NaN, and "no" only by 0?',
        "misses-inf": 'Which question about a number is answered "yes" by 3, by infinity and by NaN, and "no" only by '
        "0?",
        "misses-small": "Is 1e-30 equal to 0? A tolerance, a square and a cast can all make it so. Which comparison "
        "needs none of them?",
        "stops-at-none": "What does your function do with the parameters that come after the first one whose `.grad` "
        "is None?",
        "misses-bias": "How do you choose the parameters that you look at? Each of them can hold a gradient.",
        "misses-frozen": "`requires_grad` says what the next backward pass will do. What is in `.grad` now?",
        "first-only": "Does your loop go on after it has found the first name? Look at where the `return` is.",
        "last-only": "Does your loop add a name to the list, or does it make a new list each time?",
        "named-twice": "How often is a name added if two entries of one gradient are not 0?",
        "names-clean": "Your function sees that the model is dirty. Which of its parameters is? Ask each one on its "
        "own.",
        "wrong-names": "Print the names that `model.named_parameters()` gives, and compare yours with them.",
        "wrong-type": "Return the names themselves, as texts: not how many there are, and not the parameters.",
        "changed-input": "Which line sets `requires_grad`, or writes to the parameters? A guard needs neither.",
        "changes-gradients": "Something in your function writes: an assignment to `.grad`, or a method whose name ends "
        "in an underscore.",
    },
)
def _dirty(answer: Callable) -> str:
    for k, (rest, held, bug, hint) in enumerate(_CASES):
        model = _model(k, rest, held, torch.float64 if k == len(_CASES) - 1 else torch.float32)
        names = [name for name, _ in model.named_parameters()]
        expected = [names[i] for i in held]
        case = " and ".join(f"{names[i]}.grad is {list(values)}" for i, values in held.items())
        case = f"a model in which {case}{', all others are' if held else 'every .grad is'} {'zero' if rest else None}"
        got = _names(answer, model, case)
        if Counter(got) != Counter(expected):
            bug, hint = _slip(got, expected) or (bug, hint)
            raise Mistake(bug, f"{case}: expected {expected}, got {got}; {hint}.")
    return "gradients, None, zeros, biases, frozen ones, NaN, infinity, small ones: the guard sees what is there."


def _slip(got: Sequence[str], expected: Sequence[str]) -> tuple[str, str] | None:
    """The bug of a guard that finds dirty parameters but does not return their names, each one once."""
    extra, missing = set(got) - set(expected), set(expected) - set(got)
    if extra and missing:
        return "wrong-names", "these are not the names that model.named_parameters() gives"
    if extra and expected:
        return "names-clean", "it also names parameters that hold no gradient"
    if not extra and not missing:
        return "named-twice", "a name should be there once"
    if len(missing) == len(expected):
        return None
    if expected[0] in missing:
        return "last-only", "only the last of them is named"
    return "first-only", "only the first of them is named"


def _model(k: int, rest: Sequence[float] | None, held: Mapping[int, Sequence[float]], dtype: torch.dtype) -> nn.Module:
    """A model with six parameters of three entries each; their names are others in every case."""
    first, second = (("0", "1"), ("encoder", "decoder"), ("body", "head"))[k % 3]
    layers = {first: nn.Sequential(nn.Linear(1, 3)), second: nn.Linear(1, 3), "frozen": nn.Linear(1, 3)}
    layers["frozen"].requires_grad_(False)
    model = nn.ModuleDict(layers).to(dtype)
    for i, p in enumerate(model.parameters()):
        values = held.get(i, rest)
        p.grad = None if values is None else torch.tensor(values, dtype=dtype).view_as(p)
    return model


def _names(answer: Callable, model: nn.Module, case: str) -> list[str]:
    """What the guard says about a model, which it must leave as it is."""
    before, others = _bits(p.grad for p in model.parameters()), _others(model)
    try:
        names = answer(model)
        listed = read_all(names, at_most=50)
    except Exception as error:
        if _needs_gradients(answer, model):
            where = place(error.__traceback__) or "your function"
            crash = f"{type(error).__name__}: {error}".splitlines()[0]
            raise Mistake("crashes-on-none", f"{case}: {where} raises {crash}.") from error
        raise
    if names is None or names is ...:
        raise Mistake("not-attempted", f"your function returned {names}; it should return a list of names.")
    if _bits(p.grad for p in model.parameters()) != before:
        raise Mistake("changes-gradients", f"{case}: a guard looks, it must not change .grad.")
    if _others(model) != others:
        raise Mistake("changed-input", f"{case}: a guard looks, it must not change the parameters.")
    flags = isinstance(names, Mapping) and any(value is False for value in names.values())
    if flags or not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise Mistake("wrong-type", f"{case}: expected a list of parameter names, got {repr(names)}.")
    return listed


def _needs_gradients(answer: Callable, model: nn.Module) -> bool:
    """Whether a guard that has raised would not have done so without None."""
    clean = [p for p in model.parameters() if p.grad is None]
    for p in clean:
        p.grad = torch.zeros_like(p)
    try:
        read_all(answer(model), at_most=50)
    except Exception:
        return False
    return bool(clean)


def _others(model: nn.Module) -> list:
    """What a guard must not change besides the gradients."""
    return [*_bits(model.parameters()), *(p.requires_grad for p in model.parameters())]


def _bits(tensors: Iterable[torch.Tensor | None]) -> list[bytes | None]:
    """Every tensor bit by bit, so that NaN equals NaN."""
    return [None if tensor is None else tensor.detach().numpy().tobytes() for tensor in tensors]
