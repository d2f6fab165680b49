"""Answers to "order_the_lines", in letters.

A is zero_grad without brackets, B backward, C the loop, D step, E loss.grad = None, F the loss, G zero_grad.
"""

from answers import right, wrong

for correct in (
    "C G F B D",
    "C F G B D",
    "cgfbd",
    "C, F, G, B, D",
    "C-G-F-B-D",
):
    right("order_the_lines")(correct)

for letters, bug, says in (
    ("C F B D", "stale-gradients", "update 2"),
    ("C F B D G", "stale-gradients", "left by an earlier backward pass"),
    ("C F B G D", "discarded-gradients", ""),
    ("C G F D B G", "discarded-gradients", ""),
    ("C D G F B", "empty-step", ""),
    ("C F B G", "leftover-gradients", ""),
    ("C G F B", "leftover-gradients", ""),
    ("C G F D", "empty-step", "no backward pass"),
    ("C G B F D", "used-too-early", "line B, `loss.backward()`, uses `loss`"),
    ("C E G F B D", "used-too-early", "line E"),
    ("F C G B D", "used-too-early", "uses `batch`"),
    ("C G B D", "used-too-early", "`loss`"),
    ("G F B D", "no-loop", ""),
    ("D", "no-loop", ""),
    ("C", "empty-block", "nothing comes after line C"),
    ("G F B D C", "empty-block", ""),
    ("C G F C B D", "nested-loop", ""),
    ("C G F B D A", "idle-line", "line A"),
    ("C G F E B D", "idle-line", "line E"),
    ("C A G F E B D", "idle-line", "lines A, E"),
    ("G C G F B D", "idle-line", "line G"),
    ("C G F B D D", "irregular-window", ""),
    ("C G F B B D", "raises", "backward through the graph a second time"),
    ("C G F B X", "unknown-line", "'X'"),
    ("zero, forward, backward, step", "unknown-line", ""),
    ("", "not-attempted", ""),
    ("...", "not-attempted", ""),
    ([3, 7, 6, 2, 4], "wrong-type", ""),
    (None, "wrong-type", "expected a str or a list or a tuple"),
):
    wrong("order_the_lines", bug, says=says)(letters)
