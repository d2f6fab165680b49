"""The exercise of *who writes grad*: a guard that names the parameters whose gradient is not clean."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from math import inf, nan

import torch
from torch import nn

from course_utils.exercises.bench import Exercise, Mistake, Seen, agree, edits, read_all, returned

HELD = {  # what .grad holds, where that is not None everywhere, and the mistake of a guard that misjudges it
    "first.weight": ((3.0, 4.0, 5.0), "misses-gradients"),
    "first.bias": ((3.0, 4.0, 5.0), "misses-bias"),
    "none.weight": (None, "none-is-clean"),
    "zero.weight": ((0.0, 0.0, 0.0), "zeros-are-clean"),
    "partial.weight": ((0.0, 3.0, 0.0), "misses-partial"),
    "negative.weight": ((-3.0, -4.0, -5.0), "misses-negative"),
    "mixed.weight": ((2.0, -1.0, -1.0), "signs-cancel"),
    "nan.weight": ((0.0, nan, 0.0), "misses-nan"),
    "infinite.weight": ((0.0, inf, 0.0), "misses-inf"),
    "small.weight": ((1e-30, 0.0, 0.0), "misses-small"),
    "frozen.weight": ((3.0, 4.0, 5.0), "misses-frozen"),
}


@dataclass
class Names:
    """The names that a guard has listed."""

    listed: list[str]

    def agrees(self, other: "Names", rtol: float) -> bool:
        return sorted(self.listed) == sorted(other.listed)

    def difference(self, want: "Names") -> tuple[str, str]:
        name = next(name for name in (*HELD, *self.listed) if self.listed.count(name) != want.listed.count(name))
        held, bug = HELD.get(name, (None, "wrong-names"))
        times = f"{self.listed.count(name)} times instead of {want.listed.count(name)}"
        return bug, f"{name} holds {held and list(held)}, and is named {times}"


def solution(model):
    names = []
    for name, p in model.named_parameters():
        if p.grad is not None and p.grad.any():
            names.append(name)
    return names


def watch(answer: Callable, _: None) -> Seen:
    layers = dict.fromkeys(name.partition(".")[0] for name in HELD)
    model = nn.ModuleDict({layer: nn.Linear(1, 3, dtype=torch.float32) for layer in layers})
    model["frozen"].requires_grad_(False)
    for name, (held, _) in HELD.items():
        p = model.get_parameter(name)
        p.grad = None if held is None else torch.tensor(held, dtype=p.dtype).view_as(p)
    before = deepcopy(_state(model))
    names = read_all(returned(answer(model), "a list of names"), at_most=50)
    if not isinstance(names, (list, set)) or not all(isinstance(name, str) for name in names):
        raise Mistake("wrong-type", f"expected a list of parameters' names, as text, got {names!r}.")
    return {"the model is as before": agree(_state(model), before, 0.0, 0.0), "names": Names(list(names))}


def _state(model: nn.Module) -> list:
    """What a guard must not change."""
    return [(p.detach(), p.grad, p.requires_grad) for p in model.parameters()]


IF, APPEND = "if p.grad is not None and p.grad.any():", "names.append(name)"
DIRTY = Exercise(
    "dirty",
    "who_writes_grad",
    watch,
    solution,
    edits=[
        *edits("crashes-on-none", IF, "if p.grad.any():"),
        *edits("stops-at-none", IF, f"if p.grad is None:\n    break\n{IF}"),
        *edits("named-twice", APPEND, "names.extend([name] * 2)"),
        *edits("first-only", APPEND, "return [name]"),
        *edits("wrong-names", APPEND, "names.append(name.rpartition('.')[0])"),
    ],
    channels={"the model is as before": "changes-gradients"},
)
