"""The exercise of *skipped steps* on paper: what a scaler's log says about updates and about calls of step()."""

import torch
from torch import nn

from course_utils.practice.bench import edits, on_paper

UPDATES = "updates"
DEFAULT = "calls of a default AdamW's step"
FUSED = "calls of a fused AdamW's step"
LATE = "updates if zeroed only after an update"
LOG = [1024, 1024, 2048, 1024, 1024, 1024, 512, 512, 512, 1024]  # the scale after each window
FELL = (4, 7)  # the windows with an infinity


def run(fused: bool = False, always_zeroed: bool = True) -> tuple[int, int, list[float]]:
    """The ten windows: how many updates, how many calls of step(), and the scale after each window."""
    weight, calls, updates, log = nn.Parameter(torch.zeros(1)), [], 0, []
    optimizer = torch.optim.AdamW([weight], lr=1.0, fused=fused)
    optimizer.register_step_pre_hook(lambda *_: calls.append(weight))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    for window in range(1, len(LOG) + 1):
        before = weight.item()
        scaler.scale((torch.inf if window in FELL else 1.0) * weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        updated = weight.item() != before
        updates += updated
        if updated or always_zeroed:
            optimizer.zero_grad()
        log.append(scaler.get_scale())
    return updates, len(calls), log


def solution():
    (updates, default, _), (_, fused, _), (late, _, _) = run(), run(fused=True), run(always_zeroed=False)
    return {UPDATES: updates, DEFAULT: default, FUSED: fused, LATE: late}


SCALER_LOG = on_paper(
    "scaler_log",
    "skipped_steps",
    solution,
    [
        *edits(
            "all-counted",
            "UPDATES: updates, DEFAULT: default, FUSED: fused, LATE: late",
            "UPDATES: 10, DEFAULT: default, FUSED: fused, LATE: 10",
        ),
        *edits("growth-counted", "updates, DEFAULT", "6, DEFAULT"),
        *edits("skips-counted", "updates, DEFAULT: default, FUSED: fused", "2, DEFAULT: 2, FUSED: 2"),
        *edits("default-called", "T: default", "T: 10"),
        *edits("fused-not-called", "D: fused", "D: 8"),
        *edits("infinity-forgotten", "LATE: late", *(f"LATE: {many}" for many in range(4, 10))),
    ],
)
