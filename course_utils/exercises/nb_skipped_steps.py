"""The exercise of *skipped steps*, on paper: ten windows in a log of a scaler's scales."""

from course_utils.exercises.judging import on_paper

ZEROED = "updates if zeroed only after an update"
on_paper(
    "scaler_log",
    {"updates": 8, "calls of a default AdamW's step": 8, "calls of a fused AdamW's step": 10, ZEROED: 3},
    "two of the ten windows were skipped, and only zeroing in every window takes an infinity out of .grad.",
    "Write 'update' or 'skipped' under each of the ten numbers first. After which windows is the scale lower?",
)
