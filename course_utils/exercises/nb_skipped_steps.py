"""The exercise of *skipped steps*, on paper: ten windows in a log of a scaler's scales."""

from course_utils.exercises.judging import exercise, on_paper

ZEROED = "updates if zeroed only after an update"
LOG = "Write 'update' or 'skipped' under each of the ten numbers first. After which windows is the scale lower?"


@exercise(takes=dict)
def scaler_log(answer):
    on_paper(
        answer,
        {"updates": 8, "calls of a default AdamW's step": 8, "calls of a fused AdamW's step": 10, ZEROED: 3},
        ("all-counted", {"updates": 10}, "a window after which the scale is lower has no update", LOG),
        ("infinity-forgotten", {ZEROED: 8}, "nothing removes the infinity from .grad", LOG),
    )
    return "two of the ten windows were skipped, and only zeroing in every window takes an infinity out of .grad."
