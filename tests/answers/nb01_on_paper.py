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
    (on_paper(7, 45), "forgets-a-path", "through a"),
    (on_paper(25, 27), "forgets-a-path", "a is used twice, in b and in loss"),
    (on_paper(24, 27), "forgets-a-path", "through b"),
    (on_paper(19, 18), "forgets-a-path", "loss passes something on to it directly"),
    (on_paper(19, 27), "forgets-a-path", "loss is a product"),
    (on_paper(37, 27), "forgets-a-path", "x.grad = 27"),
    (on_paper(45, 37), "swapped", ""),
    (on_paper(45, 36), "swapped", ""),
    (on_paper(37, 45, 15), "leaves-only", "a.grad = 15"),
    (on_paper(37, 45, 0), "none-is-not-zero", ""),
    (on_paper(37, 45, 0.0), "none-is-not-zero", ""),
    (on_paper(None, 45), "leaves-only", "both are leaves"),
    (on_paper(37, 46), "wrong-value", "x.grad = 46"),  # the old gradient at the wrong leaf
    (on_paper(-37, -45), "wrong-value", ""),
    # the loss
    (on_paper(37, ...), "unfinished", "x.grad"),
    (on_paper(37, 45, ...), "unfinished", "a.grad"),
    (on_paper(..., ..., ...), "not-attempted", ""),
    ({}, "not-attempted", ""),
    ({"w": 37, "x": 45, "a": None}, "wrong-type", "no blank 'w'"),
    ([37, 45, None], "wrong-type", "expected a dict"),
):
    wrong("grad_on_paper", bug, says=says)(slip)
