"""Answers to "grad_on_paper": three numbers, and what each slip leads to. a = 6, b = 9, loss = 54."""

from fractions import Fraction

import torch

from answers import right, wrong


def on_paper(w, x, a=None):
    return {"w.grad": w, "x.grad": x, "a.grad": a}


for correct in (
    on_paper(37, 45),
    on_paper(37.0, 45.0),
    on_paper("37", "45"),
    on_paper(torch.tensor(37.0), torch.tensor(45.0)),
    on_paper(Fraction(37), Fraction(45)),
):
    right("grad_on_paper")(correct)

for slip, bug, says in (
    (on_paper(36, 45), "forgets-the-old-gradient", "w.grad = 36"),
    (on_paper(31, 45), "forgets-a-path", "w is used twice, in a and in b"),
    (on_paper(45, 37), "swapped", ""),
    (on_paper(37, 45, 15), "leaves-only", "a.grad = 15"),
    (on_paper(37, 45, 0), "none-is-not-zero", ""),
    (on_paper(37, 46), "wrong-value", "x.grad = 46"),  # the old gradient at the wrong leaf
    # the loss
    (on_paper(37, ...), "unfinished", "x.grad"),
    (on_paper(..., ..., ...), "not-attempted", ""),
    ({"w": 37, "x": 45, "a": None}, "wrong-type", "no blank 'w'"),
):
    wrong("grad_on_paper", bug, says=says)(slip)
