"""The exercise of *skipped steps* on paper: what a scaler's log says about updates and about calls of step()."""

from functools import cache

import torch
from torch import nn

from course_utils.practice.by_hand import Slip, judge_numbers
from course_utils.practice.exercises import exercise

UPDATES = "updates"
DEFAULT = "calls of a default AdamW's step"
FUSED = "calls of a fused AdamW's step"
LATE = "updates if zeroed only after an update"
LOG = [1024, 1024, 2048, 1024, 1024, 1024, 512, 512, 512, 1024]  # the scale after each window
_FELL = (4, 7)  # the windows with an infinity


def run(fused: bool = False, always_zeroed: bool = True) -> tuple[int, int, list[float]]:
    """The ten windows: how many updates, how many calls of step(), and the scale after each window."""
    weight, calls, updates, log = nn.Parameter(torch.zeros(1)), [], 0, []
    optimizer = torch.optim.AdamW([weight], lr=1.0, fused=fused)
    optimizer.register_step_pre_hook(lambda *_: calls.append(weight))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    for window in range(1, len(LOG) + 1):
        before = weight.item()
        scaler.scale((torch.inf if window in _FELL else 1.0) * weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        updated = weight.item() != before
        updates += updated
        if updated or always_zeroed:
            optimizer.zero_grad()
        log.append(scaler.get_scale())
    return updates, len(calls), log


@cache
def measured() -> dict[str, int]:
    (updates, default, _), (_, fused, _), (late, _, _) = run(), run(fused=True), run(always_zeroed=False)
    return {UPDATES: updates, DEFAULT: default, FUSED: fused, LATE: late}


_SLIPS = (
    Slip("all-counted", "a window after which the scale is lower has no update", {UPDATES: 10, LATE: 10}),
    Slip("growth-counted", "a scale that grows says nothing about a skip: it grows after updates", {UPDATES: 6}),
    Slip("skips-counted", "that is how many windows were skipped", {UPDATES: 2, DEFAULT: 2, FUSED: 2}),
    Slip("default-called", "after an overflow the scaler doesn't call an optimizer that isn't fused", {DEFAULT: 10}),
    Slip("fused-not-called", "a fused optimizer is always called, and its kernel doesn't write", {FUSED: 8}),
    Slip("infinity-forgotten", "nothing removes the infinity from .grad", {LATE: lambda got: 4 <= got <= 9}),
)


@exercise(
    "scaler_log",
    takes=dict,
    hints={
        "unfinished": "Fill in every blank.",
        "all-counted": "After which windows is the scale lower than before?",
        "growth-counted": "When does a GradScaler double its scale?",
        "skips-counted": "How many windows are left when those are taken away?",
        "default-called": "Step 1: what did the hook of the default AdamW see?",
        "fused-not-called": "Step 1: what did the hook of the fused AdamW see?",
        "infinity-forgotten": "What is in `.grad` when window 5 begins?",
        "wrong-value": "Write 'update' or 'skipped' under each of the ten numbers first.",
    },
)
def _scaler_log(answer: dict) -> str:
    judge_numbers(answer, measured(), _SLIPS)
    return "these are the counts when the ten windows run."
