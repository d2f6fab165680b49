"""Answers to "tokens_on_paper": 40 valid targets on two ranks, of which one micro-batch has none."""

from fractions import Fraction

import torch

from answers import right, wrong


def on_paper(loss=2.4, share=2.5, factor=1.5):
    return {"loss": loss, "share": share, "factor": factor}


for correct in (
    on_paper(),
    on_paper(96 / 40, 40 / 16, 60 / 40),
    on_paper("2.4", "2.5", "1.5"),
    on_paper(Fraction(12, 5), Fraction(5, 2), Fraction(3, 2)),
    on_paper(torch.tensor(2.4, dtype=torch.float64), torch.tensor(2.5), torch.tensor(1.5)),
):
    right("tokens_on_paper")(correct)

for slip, bug, says in (
    (on_paper(loss=3), "token-weights", "loss = 3"),
    (on_paper(loss=2.8), "own-rank", "counts ranks"),
    (on_paper(loss=2), "own-rank", "both ranks"),
    (on_paper(loss=2.25), "counts-the-empty", ""),
    (on_paper(loss=96), "no-divisor", ""),
    (on_paper(loss=float("nan")), "nan", ""),
    (on_paper(share=5), "one-average-missing", "share = 5"),
    (on_paper(share=0.4), "inverted", ""),
    (on_paper(share=1 / 16), "not-a-ratio", ""),
    (on_paper(share=1), "wrong-value", "share = 1"),
    (on_paper(factor=0.75), "one-average-missing", "factor = 0.75"),
    (on_paper(factor=0.375), "divides-by-the-ranks", ""),
    (on_paper(factor=3), "n-again", ""),
    (on_paper(factor=2 / 3), "inverted", ""),
    (on_paper(share=5, factor=0.75), "one-average-missing", "share = 5 and factor = 0.75"),
    (on_paper(loss=...), "unfinished", "loss"),
    (on_paper(..., ..., ...), "not-attempted", ""),
    ({}, "not-attempted", ""),
    ({"loss": 2.4, "share": 2.5}, "unfinished", "factor"),
    ({"losses": 2.4, "share": 2.5, "factor": 1.5}, "wrong-type", "no blank 'losses'"),
    (on_paper(factor=None), "wrong-value", "factor = None"),
    ([2.4, 2.5, 1.5], "wrong-type", "expected a dict"),
):
    wrong("tokens_on_paper", bug, says=says)(slip)
