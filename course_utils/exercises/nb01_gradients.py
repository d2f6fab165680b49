"""The exercises of notebook 01: an autograd engine in five lines, and what is in `.grad`, on paper."""

from course_utils.exercises.judging import Mistake, exercise, number, on_paper, returned, same

PRODUCT = [("a", "p", 3.0), ("b", "p", 2.0)]
FORMULAS = {  # the uses of each value, and the slopes of the loss
    "a * a at a = 2": ([("a", "loss", 2.0)] * 2, {"a": 4.0}),
    "p + a with p = a * b, a = 2, b = 3": ([*PRODUCT, ("p", "loss", 1.0), ("a", "loss", 1.0)], {"a": 4.0, "b": 2.0}),
    "h * h with h = a * a, a = 2": ([*[("a", "h", 2.0)] * 2, *[("h", "loss", 4.0)] * 2], {"h": 8.0, "a": 32.0}),
}
PATHS = "Along a path, multiply a use's slope by what has arrived at its result. And what where two paths meet?"
ORDER = "In which order must the uses be followed, so that all has arrived at a result before it is passed on?"


@exercise("three formulas: slopes multiply along a path, and add where paths meet.")
def plus_equals(answer):
    for formula, (uses, slopes) in FORMULAS.items():
        flow = returned(answer([*uses]), "the slope of the loss along each value")
        got = {name: number(flow[name]) for name in slopes}
        if got == {"a": 2.0}:
            if "b" not in answer([*PRODUCT, ("p", "loss", 1.0)]):
                raise Mistake("early-return", "only one use is followed.", "Is your `return` inside the loop?")
            raise Mistake("not-attempted", "the slope of a * a at a = 2 is still 2 instead of 4.", PATHS)
        for name, slope in slopes.items():
            hint = ORDER if got[name] == 1.0 else PATHS  # p has passed on 0
            same(f"the slope along {name} of {formula}", got[name], slope, "wrong-slope", hint)


on_paper(
    "grad_on_paper",
    {"w.grad": 1 + 15 * 2 + 6, "x.grad": 15 * 3, "a.grad": None},  # loss has the slope 15 in a, and 6 in b
    "every path adds a slope, and backward() adds their sum to what .grad held before.",
    "Follow every arrow back from loss. Whose `.grad` does `backward()` fill, and what did it find there?",
    ("forgets-the-old-gradient", {"w.grad": 36}, "look at what was in it before backward()"),
    ("forgets-a-path", {"w.grad": 25, "x.grad": 27}, "a is used twice, in b and in loss"),
    ("forgets-a-path", {"w.grad": 31}, "w is used twice, in a and in b"),
    ("none-is-not-zero", {"a.grad": 0}, "no tensor at all is not a tensor of zeros"),
    ("leaves-only", {"a.grad": 15}, "only leaves keep a .grad, and a is the result of an operation"),
)
