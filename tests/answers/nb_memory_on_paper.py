"""Answers to "bytes_on_paper": what a small model holds, and what each slip leads to."""

import torch

from answers import right, wrong


def on_paper(gradients=88_000, activations=9_920, both=168_000, autocast=8_960):
    return {
        "gradients": gradients,
        "activations, N = 8": activations,
        "gradients and arriving, N = 8": both,
        "activations under autocast, N = 8": autocast,
    }


for correct in (
    on_paper(),
    on_paper(88e3, 9920.0, "168000", torch.tensor(8960)),
    on_paper(22_000 * 4, 8 * 310 * 4, (22_000 + 20_000) * 4, 8 * 310 * 2 + 2_000 * 2),
    dict(reversed(on_paper().items())),
):
    right("bytes_on_paper")(correct)

for slip, bug, says in (
    (on_paper(22_000, 2_480, 42_000, 4_480), "counts-numbers", "not bytes"),
    (on_paper(gradients=22_000), "counts-numbers", "gradients = 22000"),
    (on_paper(autocast=43_680), "whole-batch", ""),
    (on_paper(autocast=12_160), "counts-twice", ""),
    (on_paper(autocast=8_800), "forgets-the-output", ""),
    (on_paper(activations=79_360), "whole-batch", "64 rows"),
    (on_paper(both=88_000), "one-gradient", "beside .grad"),
    (on_paper(both=176_000), "all-at-once", "one after the other"),
    (on_paper(both=96_000), "the-smaller-one", ""),
    (on_paper(autocast=5_460), "copies-divided", "do not depend on the rows"),
    (on_paper(autocast=4_960), "copies-forgotten", ""),
    (on_paper(autocast=48_960), "copies-of-all", "x needs no gradient"),
    (on_paper(autocast=12_960), "copies-too-wide", "2 bytes"),
    (on_paper(activations=16_320), "counts-twice", "one piece of memory"),
    (on_paper(activations=9_600), "forgets-the-output", "square"),
    (on_paper(activations=1), "wrong-value", "activations, N = 8 = 1"),
    (on_paper(gradients=...), "unfinished", "gradients"),
    (on_paper(..., ..., ..., ...), "not-attempted", ""),
    ({}, "not-attempted", ""),
    ({"weights": 88_000}, "wrong-type", "no blank 'weights'"),
    ([88_000, 9_920], "wrong-type", "expected a dict"),
):
    wrong("bytes_on_paper", bug, says=says)(slip)
