"""Answers on paper: numbers in all their types, and what isn't one of the declared slips."""

from fractions import Fraction

import numpy as np
import torch

from answers import right, wrong
from solutions import solution

right("grad_on_paper")({"x.grad": 45.0, "a.grad": None, "w.grad": "37"})
right("third_step")(
    {"fbs": torch.tensor(111), "bszf": np.int64(10), "fbszs": Fraction(10), "fbzfbs": 1e5, "fbzs": None}
)

for exercise, blank, value in (
    ("grad_on_paper", "x.grad", 46),  # the old gradient at the wrong leaf
    ("third_step", "fbs", 112),
):
    wrong(exercise, "wrong-value", f"{blank} = {value}")(solution(exercise) | {blank: value})
for exercise, bug, numbers in (
    ("ddp_on_paper", "wrong-value", {"around_backward": 3}),
    ("fits_on_paper", "wrong-value", {"plain": 17, "checkpointed": 35, "n": 4}),
    ("scaler_log", "wrong-value", {"updates": 10}),
    ("scaler_log", "wrong-value", {"updates": None}),
):
    wrong(exercise, bug)(solution(exercise) | numbers)
wrong("grad_on_paper", "not-attempted")(dict.fromkeys(solution("grad_on_paper"), ...))
wrong("grad_on_paper", "not-attempted")({"w": 37, "x": 45, "a": None})
wrong("grad_on_paper", "wrong-type")(solution("grad_on_paper") | {"a.grad": [1]})
