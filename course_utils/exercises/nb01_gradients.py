"""The exercise of notebook 01: what is in `.grad`, on paper."""

from course_utils.exercises.judging import on_paper

on_paper(
    "grad_on_paper",
    {"w.grad": 1 + 15 * 2 + 6, "x.grad": 15 * 3, "a.grad": None},  # loss has the slope 15 in a, and 6 in b
    "every path adds a slope, and backward() adds their sum to what .grad held before.",
    "Follow every arrow from loss back. Whose `.grad` does `backward()` fill, and what did it find there?",
    ("forgets-the-old-gradient", {"w.grad": 36}, "look at what was in it before backward()"),
    ("forgets-a-path", {"w.grad": 25, "x.grad": 27}, "a is used twice, in b and in loss"),
    ("forgets-a-path", {"w.grad": 31}, "w is used twice, in a and in b"),
    ("none-is-not-zero", {"a.grad": 0}, "no tensor at all is not a tensor of zeros"),
    ("leaves-only", {"a.grad": 15}, "only leaves keep a .grad, and a is the result of an operation"),
)
