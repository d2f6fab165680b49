"""Answers to "pipeline_on_paper": three stages, 6 micro-batches."""

from fractions import Fraction

from answers import right, wrong


def on_paper(slots=16, idle=4, gpipe=6, first=3, last=1):
    return {"slots": slots, "idle": idle, "gpipe": gpipe, "first": first, "last": last}


for correct in (
    on_paper(),
    on_paper(2 * (6 + 2), 16 - 12),
    on_paper("16", "4", "6", "3", "1"),
    on_paper(Fraction(16), 4.0),
    dict(reversed(on_paper().items())),
):
    right("pipeline_on_paper")(correct)

for slip, bug, says in (
    (on_paper(slots=12), "no-bubble", "slots = 12"),
    (on_paper(idle=0), "no-bubble", "same time"),
    (on_paper(slots=14), "one-way", "drains"),
    (on_paper(slots=14, idle=2), "one-way", "slots = 14 and idle = 2"),
    (on_paper(slots=8), "one-way", "forward only"),
    (on_paper(slots=36), "one-after-another", ""),
    (on_paper(idle=12), "all-stages", ""),
    (on_paper(gpipe=3), "frees-too-soon", ""),
    (on_paper(gpipe=1), "frees-too-soon", ""),
    (on_paper(first=6), "holds-all", ""),
    (on_paper(first=6, last=6), "holds-all", "first = 6 and last = 6"),
    (on_paper(first=1, last=3), "swapped", ""),
    (on_paper(first=2), "one-too-few", ""),
    (on_paper(last=0), "one-too-few", ""),
    (on_paper(slots=17), "wrong-value", "slots = 17"),
    (on_paper(gpipe=...), "unfinished", "gpipe"),
    (on_paper(..., ..., ..., ..., ...), "not-attempted", ""),
    ({}, "not-attempted", ""),
    ({"slots": 16}, "unfinished", "idle"),
    ({"slot": 16}, "wrong-type", "no blank 'slot'"),
    (on_paper(last=None), "wrong-value", "last = None"),
    ([16, 4, 6, 3, 1], "wrong-type", "expected a dict"),
):
    wrong("pipeline_on_paper", bug, says=says)(slip)
