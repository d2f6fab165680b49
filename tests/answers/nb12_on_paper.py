"""Answers to "shares_on_paper": micro-batches of 10, 10, 20, 60, 15 and 5 tokens, N = 4."""

from fractions import Fraction

from answers import right, wrong


def on_paper(total=4, tail=0.25, right=0.75, rank=0.375, norm=0.5 / 1024):
    return {"total": total, "tail": tail, "right": right, "rank": rank, "norm": norm}


for correct in (
    on_paper(),
    on_paper(4.0, Fraction(1, 4), Fraction(3, 4), Fraction(3, 8), Fraction(1, 2048)),
    on_paper(tail="0.25"),
    dict(reversed(on_paper().items())),
):
    right("shares_on_paper")(correct)

for slip, bug, says in (
    (on_paper(total=1), "divided", "nothing divides"),
    (on_paper(tail=0.5), "divided", ""),
    (on_paper(total=100), "counts-tokens", ""),
    (on_paper(right=0.5), "token-weights", "the same"),
    (on_paper(tail=0.75), "token-weights", ""),
    (on_paper(right=0.15), "other-window", ""),
    (on_paper(right=0.125), "other-window", ""),
    (on_paper(rank=0.75), "no-average", ""),
    (on_paper(rank=0.6), "global-tokens", ""),
    (on_paper(rank=0.3), "global-tokens", ""),
    (on_paper(norm=0.5), "unscaled", ""),
    (on_paper(norm=2), "unscaled", ""),
    (on_paper(total=7), "wrong-value", "total = 7"),
    (on_paper(right=0.155), "wrong-value", "right = 0.155"),  # near a slip is none
    (on_paper(rank=0.605), "wrong-value", "rank = 0.605"),
    (on_paper(norm=2.005), "wrong-value", "norm = 2.005"),
    (on_paper(total=...), "unfinished", "total"),
    (on_paper(*[...] * 5), "not-attempted", ""),
    (on_paper() | {"sum": 4}, "wrong-type", "no blank"),
    (on_paper(total=[4]), "wrong-type", ""),
):
    wrong("shares_on_paper", bug, says=says)(slip)
