"""The exercise of *ddp options*: 8 ranks of 4 micro-batches of 32 samples, and 3 buckets."""

from course_utils.exercises.judging import exercise, on_paper

DRAW = "Do one blank at a time: draw the window of one rank, and mark which backward passes send what."


@exercise(takes=dict)
def ddp_on_paper(answer):
    on_paper(
        answer,
        {"effective": 1024, "always": 12, "last": 3, "around_backward": 12, "momentum": 7 / 8, "twice": 5},
        ("without-buckets", {"always": 4, "last": 1, "around_backward": 4}, "each bucket is sent on its own", DRAW),
        ("backward-alone", {"around_backward": 3}, "with the default options the forward pass decides", DRAW),
        ("who-forgets", {"momentum": 1 / 8}, "count the ranks that keep their gradient", DRAW),
    )
    return "a batch of 1,024, 12, 3 and 12 all-reduces, momentum 0.875, and 5 samples twice."
