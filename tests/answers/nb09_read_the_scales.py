"""Answers to "scales_on_paper": a log with three overflows, and one of a scaler that is switched off."""

from fractions import Fraction

import torch
from torch import nn
from torch.amp import GradScaler

from answers import right, wrong
from course_utils.practice.exercises import nb09_read_the_scales as exercise


def on_paper(overflowed=3, lost=12, rate=1 / 32, spike=1 / 16, updates=8):
    return {"overflowed": overflowed, "lost": lost, "rate": rate, "spike": spike, "updates": updates}


def logged(slopes, left_out=(), **options):
    """The scales before each window and at the end, the learning rate at the end, and the updates of a real run."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    steps, scaler = [], GradScaler("cpu", init_scale=1024.0, **options)
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    scales = [scaler.get_scale()]
    for number, slope in enumerate(slopes, start=1):
        scaler.scale(slope * weight.sum()).backward()
        scaler.unscale_(optimizer)
        if number not in left_out:
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return scales, 0.5 ** len(steps), len(steps)


slopes = [float("inf") if number in (1, 4, 8) else 1.0 for number in range(1, 9)]
a, rate, _ = logged(slopes, growth_interval=2)
spiked, spike, _ = logged(slopes, left_out=[3], growth_interval=2)
b, _, updates = logged([1.0, 1.0, float("nan"), 1.0, 1.0, 1.0, 1.0, 1.0], enabled=False)
assert [a, spiked, b] == [exercise.A, exercise.A, exercise.B], "the notebook's logs must be those of real runs"

for correct in (
    on_paper(rate=rate, spike=spike, updates=updates),
    on_paper(rate=0.03125, spike=0.0625),
    on_paper("3", "12", 2**-5, 2**-4, 8.0),
    on_paper(rate=Fraction(1, 32), spike=Fraction(1, 16), updates=torch.tensor(8)),
    dict(reversed(on_paper().items())),
):
    right("scales_on_paper")(correct)

for slip, bug, says in (
    (on_paper(overflowed=5), "growth", "overflowed = 5"),
    (on_paper(5, 20, 1 / 8, 1 / 4), "growth", "overflowed = 5 and lost = 20 and rate = 0.125 and spike = 0.25"),
    (on_paper(2, 8, 1 / 64, 1 / 32), "last-window", ""),
    (on_paper(overflowed=2), "last-window", ""),
    (on_paper(lost=3), "one-micro-batch", "lost = 3"),
    (on_paper(rate=1 / 256), "every-window", ""),
    (on_paper(rate=1 / 256, spike=1 / 256), "every-window", ""),
    (on_paper(rate=5, spike=4), "not-a-rate", ""),
    (on_paper(rate=1 / 5, spike=1 / 4), "not-a-rate", ""),
    (on_paper(spike=1 / 64), "spike-counts", "one halving fewer"),
    (on_paper(updates=7), "switched-off", "updates = 7"),
    (on_paper(updates=0), "switched-off", ""),
    (on_paper(overflowed=8), "wrong-value", "overflowed = 8"),
    (on_paper(rate=None), "wrong-value", "rate = None"),
    (on_paper(lost=...), "unfinished", "lost"),
    (on_paper(..., ..., ..., ..., ...), "not-attempted", ""),
    ({}, "not-attempted", ""),
    ({"rates": 1}, "wrong-type", "no blank 'rates'"),
    ([3, 12, 1 / 32, 1 / 16, 8], "wrong-type", "expected a dict"),
):
    wrong("scales_on_paper", bug, says=says)(slip)
