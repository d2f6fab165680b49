"""The exercise of *ddp options*: 8 ranks of 4 micro-batches of 32 samples, and 3 buckets."""

from course_utils.exercises.judging import on_paper

on_paper(
    "ddp_on_paper",
    {"effective": 1024, "always": 12, "last": 3, "around_backward": 12, "momentum": 7 / 8, "twice": 5},
    "a batch of 1,024, 12, 3 and 12 all-reduces, momentum 0.875, and 5 samples twice.",
    "Draw the window of one rank: which backward passes send which buckets, and when is that decided? Who forgets?",
)
