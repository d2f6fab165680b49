"""Answers to "plus_equals", and to "grad_on_paper": the slips that it knows, and two at a time."""

from answers import edited, right, wrong
from solutions import solution

for bug, says, numbers in (
    ("forgets-the-old-gradient", "w.grad = 36: ", {"w.grad": 36}),
    ("forgets-a-path", "w.grad = 25 and x.grad = 27: a is used twice", {"w.grad": 25, "x.grad": 27}),
    ("none-is-not-zero", "a.grad = 0: ", {"a.grad": 0}),
    (
        "leaves-only",
        "a.grad = 15: only leaves keep a .grad, and a is the result of an operation; w.grad = 38: not right",
        {"a.grad": 15, "w.grad": 38},
    ),
    ("wrong-type", "expected a number or None, got 'None'", {"a.grad": "None"}),
    ("wrong-value", "w.grad = 45 and x.grad = 37", {"w.grad": 45, "x.grad": 37}),
):
    wrong("grad_on_paper", bug, says)(solution("grad_on_paper") | numbers)


@right("plus_equals")
def with_a_dictionary(uses):
    flow = {"loss": 1}
    for value, result, slope in uses[::-1]:
        flow[value] = flow.get(value, 0) + slope * flow[result]
    return flow


wrong("plus_equals", "not-attempted", "still 2 instead of 4")(edited("plus_equals", ("+=", "=")))
wrong("plus_equals", "wrong-slope", "a of a * a at a = 2: expected 4, got 0")(
    edited("plus_equals", ("+= slope *", "*= slope +"))
)
wrong("plus_equals", "wrong-slope", "the slope along a of h * h with h = a * a, a = 2: expected 32, got 4")(
    edited("plus_equals", (" * flow[result]", ""))
)
wrong("plus_equals", "early-return", "only one use")(edited("plus_equals", ("    return", "        return")))
wrong("plus_equals", "wrong-slope", "b = 3: expected 4, got 1")(edited("plus_equals", ("reversed(uses)", "uses")))
