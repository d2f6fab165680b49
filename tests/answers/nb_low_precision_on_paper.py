"""Answers to "stops_on_paper": where 16 bits stop, and what each slip leads to."""

import torch

from answers import right, wrong


def on_paper(quarters=64, count=256, threes=8192, update=1 / 32):
    return {
        "sum of 1/4s in bfloat16": quarters,
        "how many count": count,
        "sum of 3s in float16": threes,
        "lost in 8.0 in bfloat16": update,
    }


for correct in (on_paper(), on_paper(64.0, "256", torch.tensor(8192), 2**-5), dict(reversed(on_paper().items()))):
    right("stops_on_paper")(correct)

for slip, bug, says in (
    (on_paper(quarters=256), "as-for-ones", "sum of 1s"),
    (on_paper(threes=2048), "as-for-ones", "a larger one later"),
    (on_paper(256, 64), "swapped", "two things"),
    (on_paper(128, 512, 16384, 1 / 64), "whole-step", "a tie"),
    (on_paper(update=1 / 64), "whole-step", "even neighbour"),
    (on_paper(32, 128, 4096, 1 / 16), "too-wide", "never lost"),
    (on_paper(quarters=32), "too-wide", ""),
    (on_paper(update=2**-7), "as-near-one", ""),
    (on_paper(threes=1024), "wrong-format", "11 significant bits"),
    (on_paper(update=2**-8), "as-near-one", "at 1.0"),
    (on_paper(threes=3), "wrong-value", "3"),
    (on_paper(update=...), "unfinished", "8.0"),
    (on_paper(..., ..., ..., ...), "not-attempted", ""),
    ({}, "not-attempted", ""),
    ({"stops": 64}, "wrong-type", "no blank 'stops'"),
    ([64, 256], "wrong-type", "expected a dict"),
):
    wrong("stops_on_paper", bug, says=says)(slip)
