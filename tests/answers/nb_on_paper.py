"""Answers to the exercises on paper: numbers in all their types, and what isn't one of the slips that they declare."""

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
    ("ddp_on_paper", "effective", 1000),
    ("fits_on_paper", "adapters", 21.9),
    ("scaler_log", "updates if zeroed only after an update", 1),
    ("bowl_on_paper", "zeroed w3", -7.5),
):
    wrong(exercise, "wrong-value", f"{blank} = {value}")(solution(exercise) | {blank: value})
for exercise, bug, numbers in (
    ("ddp_on_paper", "one-rank-only", {"effective": 128}),
    ("ddp_on_paper", "one-micro-batch", {"effective": 256}),
    ("ddp_on_paper", "without-buckets", {"always": 4, "last": 1, "around_backward": 4}),
    ("ddp_on_paper", "counted-on-all", {"always": 96, "last": 24, "around_backward": 96}),
    ("ddp_on_paper", "backward-alone", {"around_backward": 3}),
    ("ddp_on_paper", "who-forgets", {"momentum": 0.125}),
    ("ddp_on_paper", "all-forget", {"momentum": 1}),
    ("ddp_on_paper", "dropped", {"twice": 3}),
    ("fits_on_paper", "forgets-the-state", {"plain": 17, "checkpointed": 35, "n": 4}),
    ("fits_on_paper", "forgets-gradients", {"plain": 13, "checkpointed": 27, "sgd": 21, "n": 5}),
    ("fits_on_paper", "activations-alone", {"plain": 25, "checkpointed": 50, "sgd": 25, "adapters": 26, "n": 3}),
    ("fits_on_paper", "keeps-a-state", {"sgd": 10}),
    ("fits_on_paper", "forgets-the-block", {"checkpointed": 80}),
    ("fits_on_paper", "everything-trains", {"adapters": 9}),
    ("fits_on_paper", "not-rounded", {"sgd": 17.5}),
    ("scaler_log", "all-counted", {"updates": 10}),
    ("scaler_log", "default-called", {"calls of a default AdamW's step": 10}),
    ("scaler_log", "fused-not-called", {"calls of a fused AdamW's step": 8}),
    ("scaler_log", "infinity-forgotten", {"updates if zeroed only after an update": 8}),
    ("bowl_on_paper", "swapped", {"zeroed w2": 1, "zeroed w3": 1, "forgotten w2": 4, "forgotten w3": -8}),
    ("bowl_on_paper", "uphill", {"zeroed w2": 16, "zeroed w3": 64, "forgotten w2": 19}),
    ("bowl_on_paper", "decays", {"forgotten w3": 4, "forgotten .grad": -4}),
    ("bowl_on_paper", "none-is-not-zero", {"forgotten .grad": None}),
):
    wrong(exercise, bug)(solution(exercise) | numbers)
wrong("bowl_on_paper", "not-attempted", "zeroed w2")(solution("bowl_on_paper") | {"zeroed w2": ...})
wrong("grad_on_paper", "not-attempted")(dict.fromkeys(solution("grad_on_paper"), ...))
wrong("grad_on_paper", "not-attempted")({"w": 37, "x": 45, "a": None})
wrong("grad_on_paper", "wrong-type")(solution("grad_on_paper") | {"a.grad": [1]})
