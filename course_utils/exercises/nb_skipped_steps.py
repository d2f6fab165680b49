"""The exercise of *skipped steps*, on paper: what a log of a scaler's scales says about ten windows."""

from course_utils.exercises.judging import exercise, on_paper

DEFAULT, FUSED = "calls of a default AdamW's step", "calls of a fused AdamW's step"
ZEROED = "updates if zeroed only after an update"
LOG = "Write 'update' or 'skipped' under each of the ten numbers first. After which windows is the scale lower?"


@exercise(takes=dict)
def scaler_log(answer):
    on_paper(
        answer,
        {"updates": 8, DEFAULT: 8, FUSED: 10, ZEROED: 3},
        ("all-counted", {"updates": 10}, "a window after which the scale is lower has no update", LOG),
        ("default-called", {DEFAULT: 10}, "after an overflow the scaler doesn't call an unfused optimizer", LOG),
        ("fused-not-called", {FUSED: 8}, "a fused optimizer is always called, and its kernel doesn't write", LOG),
        ("infinity-forgotten", {ZEROED: 8}, "nothing removes the infinity from .grad", LOG),
    )
    return "two of the ten windows were skipped, and only zeroing in every window takes an infinity out of .grad."
