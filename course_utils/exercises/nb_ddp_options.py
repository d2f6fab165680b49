"""The exercise of *ddp options*: 8 ranks of 4 micro-batches of 32 samples, and 3 buckets."""

from course_utils.exercises.judging import on_paper

on_paper(
    "ddp_on_paper",
    {"effective": 1024, "always": 12, "last": 3, "around_backward": 12, "momentum": 7 / 8, "twice": 5},
    "a batch of 1,024, 12, 3 and 12 all-reduces, momentum 0.875, and 5 samples twice.",
    "Do one blank at a time: draw the window of one rank, and mark which backward passes send what.",
    ("without-buckets", {"always": 4, "last": 1, "around_backward": 4}, "each bucket is sent on its own"),
    ("backward-alone", {"around_backward": 3}, "with the default options the forward pass decides"),
    ("who-forgets", {"momentum": 1 / 8}, "count the ranks that keep their gradient"),
)
