"""Answers to "updates_on_paper": the loops of Fabric's guide, Accelerate and Trainer."""

from fractions import Fraction

import torch

from answers import right, wrong


def on_paper(first=1, lost=1, tail=0.5, token=2.5, factor=0.05):
    return {"first": first, "lost": lost, "tail": tail, "token": token, "factor": factor}


for correct in (
    on_paper(),
    on_paper(1.0, "1", 2 / 4, 100 / 40, 8 / 160),
    on_paper(tail=Fraction(1, 2), factor=Fraction(1, 20)),
    on_paper(token=torch.tensor(2.5)),
    dict(reversed(on_paper().items())),
):
    right("updates_on_paper")(correct)

for slip, bug, says in (
    (on_paper(first=4), "counted-from-one", "first = 4"),
    (on_paper(first=4, lost=2), "counted-from-one", "first = 4 and lost = 2"),
    (on_paper(lost=0), "irregular-window", ""),
    (on_paper(first=0), "irregular-window", ""),
    (on_paper(tail=1), "tail-as-full", ""),
    (on_paper(tail=2), "inverted", ""),
    (on_paper(token=0.4), "inverted", ""),
    (on_paper(token=1 / 40), "not-a-ratio", ""),
    (on_paper(token=1), "token-weights", ""),
    (on_paper(factor=1 / 160), "divisor-not-undone", ""),
    (on_paper(factor=2 / 160), "divisor-not-undone", ""),
    (on_paper(factor=4 / 160), "one-average-missing", ""),
    (on_paper(factor=0.1), "own-rank", ""),
    (on_paper(token=7), "wrong-value", "token = 7"),
    (on_paper(first=...), "unfinished", "first"),
    (on_paper(..., ..., ..., ..., ...), "not-attempted", ""),
    ({}, "not-attempted", ""),
    ({"second": 1}, "wrong-type", "no blank 'second'"),
    ([1, 1, 0.5, 2.5, 0.05], "wrong-type", "expected a dict"),
):
    wrong("updates_on_paper", bug, says=says)(slip)
