"""The exercise of notebook 01: what is in `.grad`, on paper."""

from course_utils.exercises.judging import exercise, on_paper


@exercise(takes=dict)
def grad_on_paper(answer):
    path = "Draw the graph, and follow every arrow from loss back to the value. Each path adds a slope."
    on_paper(
        answer,
        {"w.grad": 1 + 15 * 2 + 6, "x.grad": 15 * 3, "a.grad": None},  # loss has the slope 15 in a, and 6 in b
        ("forgets-the-old-gradient", {"w.grad": 36}, "look at what was in it before backward()",
         "`backward()` adds to `.grad`. What did it find there?"),
        ("forgets-a-path", {"w.grad": 25, "x.grad": 27},
         "a is used twice, in b and in loss, and something flows back through b, too", path),
        ("forgets-a-path", {"w.grad": 31}, "w is used twice, in a and in b, and something flows back through b, too",
         path),
        ("swapped", {"w.grad": 45, "x.grad": 37}, "the two are exchanged",
         "Which of the two tensors did you follow back to?"),
        ("none-is-not-zero", {"a.grad": 0}, "no tensor at all is not a tensor of zeros",
         "What does `.grad` hold where `backward()` never wrote anything?"),
        ("leaves-only", {"a.grad": 15}, "only leaves keep a .grad, and a is the result of an operation",
         "Whose `.grad` does `backward()` fill: that of every value, or of some?"),
    )  # fmt: skip
    return "every path adds a slope, and backward() adds their sum to what .grad held before."
