"""Answers to "divisors_on_paper": 18 tokens in three answers, of which the last has 10 and a micro-batch of its own."""

from fractions import Fraction

import torch

from answers import right, wrong


def on_paper(token_mean=18, sequence_mean=30, constant=48, loop=20):
    return {"token_mean": token_mean, "sequence_mean": sequence_mean, "constant": constant, "loop": loop}


for correct in (
    on_paper(),
    on_paper(18.0, 30.0, 48.0, 20.0),
    on_paper("18", "30", "48", "20"),
    on_paper(Fraction(18), 3 * 10, 3 * 16, torch.tensor(20)),
    dict(reversed(on_paper().items())),
):
    right("divisors_on_paper")(correct)

for slip, bug, says in (
    (on_paper(token_mean=10), "own-micro-batch", "token_mean = 10"),
    (on_paper(10, 10, 16), "own-micro-batch", "sequence_mean = 10 and constant = 16"),
    (on_paper(token_mean=20), "n-instead-of-answers", ""),
    (on_paper(sequence_mean=20), "n-instead-of-answers", "sequence_mean = 20"),
    (on_paper(loop=10), "n-missing", ""),
    (on_paper(loop=18), "as-published", ""),
    (on_paper(loop=30), "as-published", ""),
    (on_paper(sequence_mean=6), "wrong-answer", ""),
    (on_paper(sequence_mean=18), "wrong-answer", ""),
    (on_paper(token_mean=6), "mean-length", ""),
    (on_paper(constant=18), "no-answers", ""),
    (on_paper(constant=288), "both", ""),
    (on_paper(1 / 18, 1 / 30, 1 / 48, 1 / 20), "inverted", ""),
    (on_paper(loop=40), "wrong-value", "loop = 40"),
    (on_paper(loop=...), "unfinished", "loop"),
    (on_paper(..., ..., ..., ...), "not-attempted", ""),
    ({}, "not-attempted", ""),
    ({"tokens": 18}, "wrong-type", "no blank 'tokens'"),
    (on_paper(constant=None), "wrong-value", "constant = None"),
    ([18, 30, 48, 20], "wrong-type", "expected a dict"),
):
    wrong("divisors_on_paper", bug, says=says)(slip)
