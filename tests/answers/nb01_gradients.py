"""Answers to "grad_on_paper": the slips that it knows, and two at a time."""

from answers import wrong
from solutions import solution

for bug, says, numbers in (
    ("forgets-the-old-gradient", "w.grad = 36: ", {"w.grad": 36}),
    ("forgets-a-path", "w.grad = 25 and x.grad = 27: a is used twice", {"w.grad": 25, "x.grad": 27}),
    ("none-is-not-zero", "a.grad = 0: ", {"a.grad": 0}),
    ("leaves-only", "a.grad = 15: only leaves", {"a.grad": 15, "w.grad": 38}),
    ("wrong-value", "w.grad = 45 and x.grad = 37", {"w.grad": 45, "x.grad": 37}),
):
    wrong("grad_on_paper", bug, says)(solution("grad_on_paper") | numbers)
