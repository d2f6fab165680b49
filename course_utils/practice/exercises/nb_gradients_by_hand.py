"""The exercise of the notebook gradients_by_hand: a slope by finite differences."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import torch

from course_utils.practice.bench import Exercise, Seen, edits, lost_digits, number


class Case(NamedTuple):
    name: str
    f: Callable[[float], float]
    w: float
    h: float

    def __str__(self) -> str:
        return f"{self.name} at w = {self.w:.4g} with h = {self.h}"


@dataclass
class Slope:
    """Right to the order of h squared, as several formulas are."""

    value: float
    h: float

    def agrees(self, other: "Slope", rtol: float) -> bool:
        return abs(self.value - other.value) <= 2 * self.h**2

    def difference(self, want: "Slope") -> tuple[str, str]:
        low = lost_digits(self.value, want.value)
        said = f"the slope is {want.value:.8g}, your function says {self.value:.8g}"
        return ("low-precision", f"{said}: it is rounded") if low else ("", said)


def solution(f, w, h):
    return (f(w + h) - f(w - h)) / (2 * h)


def watch(answer: Callable, case: Case) -> Seen:
    points: list = []

    def f(x: object) -> object:
        with suppress(Exception):  # a tensor that lives inside torch.func only
            points.extend([float(x)] if isinstance(x, Real) else torch.as_tensor(x).detach().flatten().tolist())
        return case.f(x)

    got = number(answer(f, case.w, case.h))
    sides = [any(abs(x - place) < 0.01 * case.h for x in points) for place in (case.w - case.h, case.w + case.h)]
    return {"slope": Slope(got, case.h), SIDES: sides}


SIDES = "asked at w - h, and at w + h"
ALL, RUN, RISE = "(f(w + h) - f(w - h)) / (2 * h)", "(2 * h)", "(f(w + h) - f(w - h))"
FUNCTIONS = (
    ("w³", lambda w: w**3, (-1.5, 1 / 3, 2.0)),
    ("5 - 2w", lambda w: 5.0 - 2.0 * w, (2.0,)),
    ("w²", lambda w: w**2, (0.0,)),
)
SLOPE = Exercise(
    "slope",
    "gradients_by_hand",
    watch,
    solution,
    cases=[Case(name, f, w, h) for name, f, places in FUNCTIONS for w in places for h in (1e-2, 1e-4)],
    edits=[
        *edits("parentheses", ALL, *(f"f(w + h) - f(w - h) / {run}" for run in ("(2 * h)", "h", "2 * h"))),
        *edits("adds", ALL, *(f"(f(w + h) + f(w - h)) / {run}" for run in ("(2 * h)", "h", "2"))),
        *edits("no-run", f" / {RUN}", "", " / 2", " / 2 * h", " * 2 * h", " * h"),
        *edits("no-run", ALL, "f(w + h) - f(w)", "f(w) - f(w - h)", "(f(w + h) - f(w)) * h", "(f(w) - f(w - h)) * h"),
        *edits("wrong-sign", ALL, f"-{ALL}", f"-{RISE} / h", "(f(w) - f(w + h)) / h", "(f(w - h) - f(w)) / h"),
        *edits("half-distance", RUN, "h"),
        *edits("double-distance", ALL, f"{RISE} / (4 * h)", "(f(w + h) - f(w)) / (2 * h)"),
        *edits("one-sided", ALL, "(f(w + h) - f(w)) / h", "(f(w) - f(w - h)) / h", "(f(w + 2 * h) - f(w)) / (2 * h)"),
    ],
    channels={SIDES: "other-points"},
)
