"""Answers to "bowl_on_paper": five numbers, and what each slip leads to."""

from fractions import Fraction

import numpy as np
import torch

from answers import right, wrong


def on_paper(zeroed_2=4, zeroed_3=-8, grad=0, forgotten_2=1, forgotten_3=1):
    return {
        "zeroed w2": zeroed_2,
        "zeroed w3": zeroed_3,
        "forgotten .grad": grad,
        "forgotten w2": forgotten_2,
        "forgotten w3": forgotten_3,
    }


for correct in (
    on_paper(),
    on_paper(4.0, -8.0, 0.0, 1.0, 1.0),
    on_paper("4", "-8", "0", "1", "1"),
    on_paper(torch.tensor(4.0), Fraction(-8), np.float32(0), np.int64(1), 1),
    on_paper(grad=4 - 8 + 4),
):
    right("bowl_on_paper")(correct)

for slip, bug, says in (
    (on_paper(forgotten_2=4, forgotten_3=-8, grad=16), "swapped", "the other loop"),
    (on_paper(16, 64, 96, 19, 91), "uphill", ""),
    (on_paper(9, -27, 12, 5, -7), "no-learning-rate", ""),
    (on_paper(0.25, -0.125, -1.5, -1.25, -0.125), "wrong-slope", "not the slope"),
    (on_paper(grad=-4, forgotten_3=4), "decays", "first gradient"),
    (on_paper(grad=4), "own-gradient", ""),
    (on_paper(grad=None), "none-is-not-zero", ""),
    (on_paper(zeroed_3=-7.5), "wrong-value", "zeroed w3 = -7.5"),
    (on_paper(grad=...), "unfinished", "forgotten .grad"),
    (on_paper(..., ..., ..., ..., ...), "not-attempted", ""),
    ({"w2": 4}, "wrong-type", "no blank 'w2'"),
):
    wrong("bowl_on_paper", bug, says=says)(slip)
