"""Answers to "read_the_ledger": every pair of loops, since there are few."""

from answers import right, wrong

for correct in ("E D", "ED", "e d", "E, D", "E\nD", "[E][D]", ["E", "D"], ("e", "d")):
    right("read_the_ledger")(correct)

for first, bug in {"A": "other-order", "B": "other-windows", "C": "other-windows", "D": "other-order",
                   "F": "other-steps"}.items():  # fmt: skip
    for second in "ABCDEF":
        if first + second != "DE":
            wrong("read_the_ledger", bug, says=f"ledger 1 is not of loop {first}")(f"{first} {second}")

for second, bug in {"A": "other-heights", "B": "other-windows", "C": "other-windows", "E": "other-order",
                    "F": "other-steps"}.items():  # fmt: skip
    wrong("read_the_ledger", bug, says=f"ledger 2 is not of loop {second}")(f"E {second}")

for letters, bug in (
    ("D E", "swapped"),
    ("E", "too-few"),
    (["E"], "too-few"),
    ("E D A", "too-many"),
    ("1 E 2 D", "unknown-line"),
    ("E G", "unknown-line"),
    ("", "not-attempted"),
    ([], "not-attempted"),
    ([5, 4], "wrong-type"),
    ({"E": 1, "D": 2}, "wrong-type"),
):
    wrong("read_the_ledger", bug)(letters)
