"""Answers to "every_second_step": what `.grad` holds after three backward passes, and what each slip leads to."""

import torch

from answers import right, wrong


def on_paper(second, third, fourth):
    return {"grad 2": second, "grad 3": third, "grad 4": fourth}


for correct in (
    on_paper(-6, 1, 1.5),
    on_paper(-6.0, 1.0, 1.5),
    on_paper("-6", "1", "1.5"),
    on_paper(torch.tensor(-6), torch.tensor(1), torch.tensor(1.5)),
    on_paper(-4 - 2, 2 * 0.5, 1 + 2 * 0.25),
):
    right("every_second_step")(correct)

for slip, bug, says in (
    (on_paper(-6, -5, -1.5), "zeroes-never", "grad 3 = -5"),
    (on_paper(-2, -1, -0.5), "zeroes-every-time", "grad 2 = -2"),
    (on_paper(-2, -3, 0.5), "zeroes-in-the-wrong-place", "grad 3 = -3"),
    (on_paper(-6, 1, 0.5), "forgets-to-add", "grad 4 = 0.5"),
    (on_paper(-2, 1, 1.5), "forgets-to-add", "grad 2 = -2"),
    (on_paper(-2, 1, 0.5), "forgets-to-add", "grad 2 = -2 and grad 4 = 0.5"),
    (on_paper(-6, 2, 1.5), "wrong-value", "grad 3 = 2"),
    (on_paper(-8, 0, 0), "steps-too-rarely", "grad 2 = -8 and grad 3 = 0 and grad 4 = 0"),
    (on_paper(-6, 1, ...), "unfinished", "grad 4"),
    (on_paper(..., ..., ...), "not-attempted", ""),
    ({}, "not-attempted", ""),
    (on_paper(-6, None, 1.5), "wrong-value", "None"),
    (on_paper(-6, [1], 1.5), "wrong-type", ""),
    (-6, "wrong-type", "expected a dict"),
):
    wrong("every_second_step", bug, says=says)(slip)
