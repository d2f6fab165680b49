"""Answers to "stops_on_paper": where 16 bits stop, and what each slip leads to."""

import torch

from answers import right, wrong


def on_paper(quarters=64, count=256, ones=2048, update=1 / 32):
    return {
        "bfloat16, adding 1/4s: stops at": quarters,
        "bfloat16, adding 1/4s: how many count": count,
        "float16, adding 1s: stops at": ones,
        "bfloat16, largest 2**-k lost in 8.0 + 2**-k": update,
    }


for correct in (on_paper(), on_paper(64.0, "256", torch.tensor(2048), 2**-5), dict(reversed(on_paper().items()))):
    right("stops_on_paper")(correct)

for slip, bug, says in (
    (on_paper(quarters=256), "as-for-ones", "sum of 1s"),
    (on_paper(256, 64), "swapped", "two things"),
    (on_paper(128, 512, 4096, 1 / 64), "whole-step", "a tie"),
    (on_paper(update=1 / 64), "whole-step", "even neighbour"),
    (on_paper(32, 128, 1024, 1 / 16), "too-wide", "never lost"),
    (on_paper(ones=256), "wrong-format", "11 significant bits"),
    (on_paper(update=2**-8), "as-near-one", "at 1.0"),
    (on_paper(ones=3), "wrong-value", "3"),
    (on_paper(update=...), "unfinished", "8.0"),
    (on_paper(..., ..., ..., ...), "not-attempted", ""),
    ({}, "not-attempted", ""),
    ({"stops": 64}, "wrong-type", "no blank 'stops'"),
    (on_paper("far"), "wrong-type", ""),
    ([64, 256], "wrong-type", "expected a dict"),
):
    wrong("stops_on_paper", bug, says=says)(slip)
