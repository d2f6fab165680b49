"""Answers to "third_step": what the third step of five programs reads, and what each slip leads to."""

from fractions import Fraction

import numpy as np
import torch

from answers import right, wrong


def answer(fbs=111, bszf=10, fbszs=10, fbzfbs=100_000, fbzs=None):
    return {"fbs": fbs, "bszf": bszf, "fbszs": fbszs, "fbzfbs": fbzfbs, "fbzs": fbzs}


for correct in (
    answer(),
    answer(111.0, 10.0, 10.0, 1e5),
    answer("111", "10", "10", "100000"),
    answer(torch.tensor(111), np.int64(10), Fraction(10), 10**5),
    answer(1 + 10 + 100),
):
    right("third_step")(correct)

for slip, bug, says in (
    (answer(fbs=100), "nothing-clears", "fbs = 100: there is no z in it"),
    (answer(bszf=11), "forgets-z", "bszf = 11"),
    (answer(fbszs=100), "counts-rounds", "fbszs = 100: count the steps"),
    (answer(bszf=100), "backward-before-forward", "look which loss is there"),
    (answer(fbzs=0), "none-is-not-zero", "leaves no tensor"),
    (answer(fbs=112), "wrong-value", "fbs = 112"),
    (answer(fbzs=...), "unfinished", "fbzs"),
    (answer(..., ..., ..., ..., ...), "not-attempted", ""),
    ({"fbsz": 100}, "wrong-type", "no blank 'fbsz'"),
):
    wrong("third_step", bug, says=says)(slip)
