"""Answers to "ddp_on_paper": eight ranks, windows of 4 micro-batches of 32 samples, three buckets, 1,003 samples."""

from fractions import Fraction

from answers import right, wrong


def on_paper(effective=1024, always=12, last=3, around_backward=12, momentum=0.875, twice=5):
    return {
        "effective": effective,
        "always": always,
        "last": last,
        "around_backward": around_backward,
        "momentum": momentum,
        "twice": twice,
    }


for correct in (
    on_paper(),
    on_paper(32 * 4 * 8, 4 * 3, 3, 4 * 3, 7 / 8, 126 * 8 - 1003),
    on_paper("1024", "12", "3", "12", "0.875", "5"),
    on_paper(momentum=Fraction(7, 8)),
    dict(reversed(on_paper().items())),
):
    right("ddp_on_paper")(correct)

for slip, bug, says in (
    (on_paper(effective=128), "one-rank-only", "effective = 128"),
    (on_paper(effective=256), "one-micro-batch", ""),
    (on_paper(always=4), "without-buckets", ""),
    (on_paper(always=96, last=24, around_backward=96), "counted-on-all", ""),
    (on_paper(around_backward=3), "backward-alone", ""),
    (on_paper(momentum=0.125), "who-forgets", ""),
    (on_paper(momentum=1), "all-forget", ""),
    (on_paper(twice=3), "dropped", "nothing is dropped"),
    (on_paper(effective=1000), "wrong-value", "effective = 1000"),
    (on_paper(last=...), "unfinished", "last"),
    (on_paper(..., ..., ..., ..., ..., ...), "not-attempted", ""),
    ({"batch": 1024}, "wrong-type", "no blank 'batch'"),
):
    wrong("ddp_on_paper", bug, says=says)(slip)
