"""Answers to "order_amp", in letters.

A is update, B the clip, C the scaled backward pass, D the optimizer's own step, E the test for a full window, F
unscale_, G the zeroing, H the loop, I the scaler's step.
"""

from answers import right, wrong

for correct in (
    "ghcefbiag",
    "G-H>C [E]\n[F] b i a g",
    "G, H, C, E, F, B, I, G, A",
    list("GHCEFBIAG"),
    ("gh", "CEF", "biag"),
):
    right("order_amp")(correct)

for letters, bug, says in (
    ("G H C E B F I A G", "clip-timing", ""),
    ("G H C F E B I A G", "scaler-timing", "unscale_() has already been called"),
    ("G H C E F B D A G", "unguarded-step", "NaN or infinity"),
    ("G H E C F B I A G", "missing-backward", ""),
    ("G H C F B I A G", "irregular-window", ""),
    ("G H C", "leftover-gradients", ""),
    ("G H C E", "no-loop", "what it repeats comes after"),
    ("G E H C F B I A G", "no-loop", "before each C and E"),
    ("G C E F B I A G", "no-loop", ""),
    ("G H H C E F B I A G", "no-loop", "stands there once"),
    ("G G H C E F B I A G", "idle-line", ""),
    ("G H C E F B I A J", "unknown-line", "'J'"),
    ("", "not-attempted", ""),
    ([7, 8, 3, 5, 6, 2, 9, 1, 7], "wrong-type", ""),
):
    wrong("order_amp", bug, says)(letters)
