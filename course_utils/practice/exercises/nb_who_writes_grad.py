"""The exercise of *who writes grad*: a guard that names the parameters whose gradient is not clean."""

from collections.abc import Callable, Mapping
from reprlib import repr
from typing import Any, NamedTuple

import torch
from torch import nn

from course_utils.practice.bench import Exercise, Mistake, Seen, agree, edits, read_all, returned

INF, NAN = float("inf"), float("nan")
ZEROS, GRADIENT = (0.0, 0.0, 0.0), (3.0, 4.0, 5.0)
EARLIER, WEIGHT, BIAS, FROZEN = 0, 2, 3, 4  # places in the list of a model's parameters


class Case(NamedTuple):
    """What most .grad hold (None: there is none), which hold something else, and the mistake that the case finds."""

    rest: Any
    held: Mapping[int, Any]
    bug: str
    says: str
    layers: tuple[str, str] = ("encoder", "decoder")
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        names = [
            f"{layer}.{kind}"
            for layer in (f"{self.layers[0]}.0", self.layers[1], "frozen")
            for kind in ("weight", "bias")
        ]
        case = " and ".join(f"{names[i]}.grad is {list(values)}" for i, values in self.held.items())
        others = f"{case}, all others are" if self.held else "every .grad is"
        return f"a model in which {others} {'zero' if self.rest else None}"


def solution(model):
    names = []
    for name, p in model.named_parameters():
        if p.grad is not None and p.grad.any():
            names.append(name)
    return names


def watch(answer: Callable, case: Case) -> Seen:
    first, second = case.layers
    layers = {first: nn.Sequential(nn.Linear(1, 3)), second: nn.Linear(1, 3), "frozen": nn.Linear(1, 3)}
    layers["frozen"].requires_grad_(False)
    model = nn.ModuleDict(layers).to(case.dtype)
    for i, p in enumerate(model.parameters()):
        values = case.held.get(i, case.rest)
        p.grad = None if values is None else torch.tensor(values, dtype=case.dtype).view_as(p)
    before = _state(model)
    try:
        names = answer(model)
        listed = read_all(names, at_most=50)
    except (AttributeError, TypeError) as error:
        if "NoneType" in str(error) and case.rest is None:
            raise Mistake("crashes-on-none", f"{case}: your function raises {error}.") from error
        raise
    returned(names, "a list of names")
    flags = isinstance(names, Mapping) and any(value is False for value in names.values())
    listed = list(listed) if isinstance(listed, (dict, set)) else listed
    if flags or not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise Mistake("wrong-type", f"{case}: expected a list of parameter names, got {repr(names)}.")
    grads, others = (agree(now, then, 0.0, 0.0) for now, then in zip(_state(model), before, strict=True))
    return {".grad is as before": grads, "the parameters are as before": others, case.says: sorted(listed)}


def _state(model: nn.Module) -> tuple[list, list]:
    """What a guard must not change: the gradients, and all else."""
    parameters = list(model.parameters())
    grads = [None if p.grad is None else p.grad.clone() for p in parameters]
    return grads, [(p.detach().clone(), p.requires_grad) for p in parameters]


APPEND, ONE, STAYS = "names.append(name)", "one entry other than 0 is enough", "stays in every later sum"
ALL = "[name for name, _ in model.named_parameters()]"
CASES = [
    Case(None, {}, "none-is-clean", "where .grad is None there is nothing to look at", ("0", "1")),
    Case(ZEROS, {}, "zeros-are-clean", "zeros add nothing to the next backward pass"),
    Case(ZEROS, {WEIGHT: GRADIENT}, "misses-gradients", "it holds a gradient of an earlier backward pass"),
    Case(ZEROS, {WEIGHT: (0.0, 3.0, 0.0)}, "misses-partial", ONE, ("0", "1")),
    Case(ZEROS, {WEIGHT: (3.0, 0.0, 0.0)}, "misses-partial", ONE),
    Case(ZEROS, {WEIGHT: (-3.0, 0.0, 0.0)}, "misses-negative", "a negative gradient is a gradient, too"),
    Case(ZEROS, {WEIGHT: (2.0, 0.0, -2.0)}, "signs-cancel", "its entries add up to 0 but are not 0"),
    Case(ZEROS, {WEIGHT: (0.0, NAN, 0.0)}, "misses-nan", f"a NaN {STAYS}"),
    Case(ZEROS, {WEIGHT: (-INF, 0.0, 0.0)}, "misses-inf", f"an infinity {STAYS}"),
    Case(ZEROS, {WEIGHT: (1e-30, 0.0, 0.0)}, "misses-small", "small is not zero"),
    Case(None, {WEIGHT: GRADIENT}, "stops-at-none", "a parameter without a gradient says nothing about the next one"),
    Case(ZEROS, {BIAS: GRADIENT}, "misses-bias", "every parameter counts, whatever its name and shape"),
    Case(ZEROS, {FROZEN: GRADIENT}, "misses-frozen", "it is frozen, and the gradient is in .grad all the same"),
    Case(None, {EARLIER: GRADIENT, WEIGHT: GRADIENT}, "misses-gradients", "two parameters hold a gradient"),
    Case(
        ZEROS,
        {WEIGHT: (0.0, 1e-200, 0.0)},
        "misses-small",
        "this is float64, in which small is not zero either",
        dtype=torch.float64,
    ),
]
DIRTY = Exercise(
    "dirty",
    "who_writes_grad",
    watch,
    solution,
    cases=CASES,
    edits=[
        *edits("named-twice", APPEND, "names.extend([name] * int(p.grad.count_nonzero()))", "names.extend([name] * 2)"),
        *edits("names-clean", APPEND, f"names = {ALL}"),
        *edits("first-only", APPEND, "return [name]"),
        *edits("last-only", APPEND, "names = [name]"),
        *edits("wrong-names", APPEND, "names.append(name.rpartition('.')[0])", "names.append(name.rpartition('.')[2])"),
    ],
    channels={".grad is as before": "changes-gradients", "the parameters are as before": "changed-input"}
    | {case.says: case.bug for case in CASES},
)
