"""Answers to the exercises on paper: numbers in all their types, and what each slip leads to."""

from fractions import Fraction

import numpy as np
import torch

from answers import right, wrong
from course_utils.practice.exercises.nb_skipped_steps import LOG, run
from solutions import solution

assert run()[2] == LOG, "the log of the text must be that of the run"

right("grad_on_paper")({"x.grad": 45.0, "a.grad": None, "w.grad": "37"})
right("third_step")(
    {"fbs": torch.tensor(111), "bszf": np.int64(10), "fbszs": Fraction(10), "fbzfbs": 1e5, "fbzs": None}
)

W2, W3, GRAD = "forgotten w2", "forgotten w3", "forgotten .grad"
DEFAULT, FUSED = "calls of a default AdamW's step", "calls of a fused AdamW's step"
LATE = "updates if zeroed only after an update"
SLIPS = {
    "grad_on_paper": (
        ({"w.grad": 36}, "forgets-the-old-gradient", "w.grad = 36"),
        ({"w.grad": 31}, "forgets-a-path", "w is used twice, in a and in b"),
        ({"w.grad": 45, "x.grad": 37}, "swapped", ""),
        ({"a.grad": 15}, "leaves-only", "a.grad = 15"),
        ({"a.grad": 0}, "none-is-not-zero", ""),
        ({"x.grad": 46}, "wrong-value", "x.grad = 46"),  # the old gradient at the wrong leaf
        ({"x.grad": ...}, "unfinished", "x.grad"),
        ({"w": 37}, "wrong-type", "no blank 'w'"),
    ),
    "third_step": (
        ({"fbs": 100}, "nothing-clears", "fbs = 100: there is no z in it"),
        ({"bszf": 11}, "forgets-z", "bszf = 11"),
        ({"fbszs": 100}, "counts-rounds", "fbszs = 100: count the steps"),
        ({"bszf": 100}, "backward-before-forward", "look which loss is there"),
        ({"fbzs": 0}, "none-is-not-zero", "leaves no tensor"),
    ),
    "ddp_on_paper": (
        ({"effective": 128}, "one-rank-only", "effective = 128"),
        ({"effective": 256}, "one-micro-batch", ""),
        ({"always": 4}, "without-buckets", ""),
        ({"always": 96, "last": 24, "around_backward": 96}, "counted-on-all", ""),
        ({"around_backward": 3}, "backward-alone", ""),
        ({"momentum": 0.125}, "who-forgets", ""),
        ({"momentum": 1}, "all-forget", ""),
        ({"twice": 3}, "dropped", "nothing is dropped"),
    ),
    "fits_on_paper": (
        ({"plain": 17, "checkpointed": 35, "n": 4}, "forgets-the-state", "two numbers"),
        ({"plain": 13, "checkpointed": 27, "sgd": 21, "n": 5}, "forgets-gradients", "full set"),
        ({"plain": 25, "checkpointed": 50, "sgd": 25, "adapters": 26, "n": 3}, "activations-alone", "share the card"),
        ({"sgd": 10}, "keeps-a-state", "keeps nothing"),
        ({"sgd": 13}, "one-state-for-sgd", "momentum"),
        ({"checkpointed": 80}, "forgets-the-block", "come back"),
        ({"adapters": 9}, "everything-trains", "no gradient"),
        ({"adapters": 25}, "frozen-weights-vanish", "still on the card"),
        ({"sgd": 18, "adapters": 22, "n": 6}, "rounds-the-wrong-way", ""),
        ({"sgd": 17.5, "adapters": 21.3158, "n": 6.4}, "not-rounded", "come whole"),
    ),
    "scaler_log": (
        ({"updates": 10}, "all-counted", "lower"),
        ({"updates": 6}, "growth-counted", "grows after updates"),
        ({"updates": 2, DEFAULT: 2, FUSED: 2}, "skips-counted", "were skipped"),
        ({DEFAULT: 10}, "default-called", "isn't fused"),
        ({FUSED: 8}, "fused-not-called", "always called"),
        ({LATE: 8}, "infinity-forgotten", "removes the infinity"),
    ),
    "bowl_on_paper": (
        ({GRAD: 16, W2: 4, W3: -8}, "swapped", "the other loop"),
        ({"zeroed w2": 16, "zeroed w3": 64, GRAD: 96, W2: 19, W3: 91}, "uphill", ""),
        ({"zeroed w2": 9, "zeroed w3": -27, GRAD: 12, W2: 5, W3: -7}, "no-learning-rate", ""),
        ({"zeroed w2": 0.25, "zeroed w3": -0.125, GRAD: -1.5, W2: -1.25, W3: -0.125}, "wrong-slope", "not the slope"),
        ({GRAD: -4, W3: 4}, "decays", "first gradient"),
        ({GRAD: 4}, "own-gradient", ""),
        ({GRAD: None}, "none-is-not-zero", ""),
    ),
}
for exercise, slips in SLIPS.items():
    wrong(exercise, "not-attempted")(dict.fromkeys(solution(exercise), ...))
    for blanks, bug, says in slips:
        wrong(exercise, bug, says)(solution(exercise) | blanks)
