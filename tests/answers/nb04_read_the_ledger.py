"""Answers to "read_the_ledger": every pair of loops, since there are few."""

from answers import right, wrong

for correct in (
    "C B",
    "CB",
    "c b",
    "C, B",
    "C\nB",
):
    right("read_the_ledger")(correct)

for first, bug in {"A": "other-order", "B": "other-order", "D": "other-windows"}.items():
    for second in "ABCD":
        if first + second != "BC":
            wrong("read_the_ledger", bug, says=f"ledger 1 is not of loop {first}")(f"{first} {second}")

for second, bug in {"A": "other-heights", "C": "other-order", "D": "other-windows"}.items():
    wrong("read_the_ledger", bug, says=f"ledger 2 is not of loop {second}")(f"C {second}")

for letters, bug in (
    ("B C", "swapped"),
    ("C", "too-few"),
    (["C"], "too-few"),
    ("C B A", "too-many"),
    ("1 C 2 B", "unknown-line"),
    ("C E", "unknown-line"),
    ("", "not-attempted"),
    ([], "not-attempted"),
    ([3, 2], "wrong-type"),
    ({"C": 1, "B": 2}, "wrong-type"),
):
    wrong("read_the_ledger", bug)(letters)
