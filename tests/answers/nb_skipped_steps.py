"""Answers to "scaler_log": what a scaler's log says, and what each slip leads to."""

import torch

from answers import right, wrong
from course_utils.practice.exercises.nb_on_paper import LOG, run


def log(updates=8, default=8, fused=10, late=3):
    return {
        "updates": updates,
        "calls of a default AdamW's step": default,
        "calls of a fused AdamW's step": fused,
        "updates if zeroed only after an update": late,
    }


assert run()[2] == LOG, "the log of the text must be that of the run"

for correct in (log(), log(8.0, "8", torch.tensor(10)), dict(reversed(log().items()))):
    right("scaler_log")(correct)

for slip, bug, says in (
    (log(updates=10), "all-counted", "lower"),
    (log(updates=6), "growth-counted", "grows after updates"),
    (log(2, 2, 2), "skips-counted", "were skipped"),
    (log(default=10), "default-called", "isn't fused"),
    (log(fused=8), "fused-not-called", "always called"),
    (log(late=8), "infinity-forgotten", "removes the infinity"),
    (log(late=1), "wrong-value", "1"),
    (log(late=...), "unfinished", "zeroed"),
    (log(..., ..., ..., ...), "not-attempted", ""),
    ({"skips": 2}, "wrong-type", "no blank 'skips'"),
):
    wrong("scaler_log", bug, says=says)(slip)
