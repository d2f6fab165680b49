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
    (answer(fbszs=11), "forgets-z", "fbszs = 11"),
    (answer(fbzfbs=111_111), "forgets-z", "fbzfbs = 111111"),
    (answer(fbzfbs=110_000), "forgets-z", "its z clears what the b before it brought"),
    (answer(fbzs=111), "forgets-z", "fbzs = 111"),
    (answer(fbzs=100), "forgets-z", "fbzs = 100: its z clears"),
    (answer(bszf=11, fbszs=11, fbzfbs=111_111, fbzs=111), "forgets-z", "bszf = 11 and fbszs = 11 and fbzfbs"),
    (answer(fbszs=100), "counts-rounds", "fbszs = 100: count the steps"),
    (answer(fbszs=None), "counts-rounds", "fbszs = None"),
    (answer(fbzfbs=100), "counts-rounds", "fbzfbs = 100"),
    (answer(fbszs=100, fbzfbs=100), "counts-rounds", "fbszs = 100 and fbzfbs = 100"),
    (answer(bszf=100), "backward-before-forward", "look which loss is there"),
    (answer(bszf=1), "backward-before-forward", ""),
    (answer(fbzs=0), "none-is-not-zero", "leaves no tensor"),
    (answer(fbs=112), "wrong-value", "fbs = 112"),
    (answer(fbs=None), "wrong-value", "fbs = None"),
    (answer(fbzs=...), "unfinished", "fbzs"),
    ({"fbs": 111}, "unfinished", "bszf"),
    (answer(..., ..., ..., ..., ...), "not-attempted", ""),
    ({}, "not-attempted", ""),
    ({"fbsz": 100}, "wrong-type", "no blank 'fbsz'"),
    ("111", "wrong-type", "expected a dict"),
):
    wrong("third_step", bug, says=says)(slip)
