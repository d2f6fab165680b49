"""Answers to "order_the_window", in letters.

A is the step, B the test that counts from 0, C the loss that is not divided, D the loop, E the loss that is, F the
zeroing, G the test that counts from 1.
"""

from answers import right, wrong

for correct in ("F D E G A F", "fdegaf", "F, D, E, G, A, F", "F\nD\nE\nG\nA\nF\n", list("FDEGAF")):
    right("order_the_window")(correct)

for letters, bug, says in (
    ("D E G A F", "stale-gradients", "the old gradient entered the first update"),
    ("F D E G A", "stale-gradients", "update 2"),
    ("D F E G A", "discarded-gradients", ""),
    ("D E F G A", "discarded-gradients", ""),
    ("F D E A F", "irregular-window", ""),
    ("F D E B A F", "irregular-window", ""),
    ("F D B E G A F", "leftover-gradients", "no optimizer.step() has run"),
    ("F D C G A F", "loss-scale", ""),
    ("F D C E G A F", "loss-scale", ""),
    ("F D E G", "empty-block", "nothing comes after line G"),
    ("F D E", "leftover-gradients", ""),
    ("F E D G A F", "used-too-early", "line E, `(loss_fn(model, batch) / n).backward()`, uses `batch`"),
    ("G D E A F", "used-too-early", "line G"),
    ("F E G A F", "no-loop", ""),
    ("F D E G A F D", "nested-loop", ""),
    ("F F D E G A F", "idle-line", "lines F, F"),
    ("F D E G A F F", "idle-line", ""),
    ("F D E G A H", "unknown-line", "'H'"),
    ("", "not-attempted", ""),
    ("...", "not-attempted", ""),
    ([6, 4, 5, 7, 1, 6], "wrong-type", ""),
    (None, "wrong-type", "expected a str or a list or a tuple"),
):
    wrong("order_the_window", bug, says=says)(letters)
