"""Answers to "order_amp", in letters.

A is update, B the clip, C the scaled backward pass, D the optimizer's own step, E the test for a full window, F
unscale_, G the zeroing, H the loop, I the scaler's step.
"""

from answers import right, wrong

for correct in (
    "G H C E F B I A G",
    "ghcefbiag",
    "G, H, C, E, F, B, I, G, A",
    "G\nH\nC\nE\nF\nB\nI\nA\nG\n",
    list("GHCEFBIAG"),
):
    right("order_amp")(correct)

for letters, bug, says in (
    ("G H C E B F I A G", "clip-timing", "because the scaled gradient was clipped"),
    ("G H C E B I A G", "clip-timing", "because the scaled gradient was clipped"),
    ("G H C B E F I A G", "clip-timing", ""),
    ("G H C E F I A G", "clip-timing", "above max_norm = 2"),
    ("G H C E F I B A G", "clip-timing", ""),
    ("G H C F E B I A G", "scaler-timing", "unscale_() has already been called"),
    ("G H C F A E B I A G", "scaler-timing", "its micro-batches count [9.09e-13,"),
    ("G H C E F B I G", "scaler-timing", "unscale_() is being called after step()"),
    ("G H C E F B A I G", "scaler-timing", ""),
    ("G H C A E F B I G", "scaler-timing", "No inf checks were recorded"),
    ("G H C E D G", "scaler-timing", "1024 times too large"),
    ("G H C E F B D A G", "unguarded-step", "an infinity reached the weights"),
    ("H C E F B I A G", "stale-gradients", "update 1"),
    ("G H C E F B I A", "stale-gradients", "update 2"),
    ("H G C E F B I A", "discarded-gradients", "count [0.0, 0.0, 0.0, 1.0] times"),
    ("G H C G E F B I A", "discarded-gradients", "Something zeroes inside the window"),
    ("G H C E F B G I A", "discarded-gradients", "the step found no gradient"),
    ("G H E C F B I A G", "missing-backward", "3 backward passes have run instead of 12"),
    ("G H C F B I A G", "irregular-window", "12 steps have run instead of 3"),
    ("G H C E F B I D A G", "irregular-window", ""),
    ("G H C", "leftover-gradients", "no step have run"),
    ("G H E G", "leftover-gradients", "no backward pass"),
    ("G H C E", "empty-block", "nothing comes after line E"),
    ("G E H C F B I A G", "used-too-early", "line E"),
    ("G C E F B I A G", "no-loop", ""),
    ("G H H C E F B I A G", "nested-loop", ""),
    ("G G H C E F B I A G", "idle-line", "lines G, G"),
    ("G H C E F B B I A G", "idle-line", "lines B, B"),
    ("G H C E F B I A J", "unknown-line", "'J'"),
    ("", "not-attempted", ""),
    ("...", "not-attempted", ""),
    ([7, 8, 3, 5, 6, 2, 9, 1, 7], "wrong-type", ""),
    (None, "wrong-type", "expected a str or a list or a tuple"),
):
    wrong("order_amp", bug, says=says)(letters)
