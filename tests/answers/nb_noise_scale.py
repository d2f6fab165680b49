"""Answers to "noise_scale": the gradient noise scale, from copies of `.grad`."""

import numpy as np

from answers import edited, right, wrong


@right("noise_scale")
def in_numpy(snapshots, b):
    data = np.array([[grad.numpy() for grad in window] for window in snapshots])
    n = data.shape[1]
    if n < 2:
        return np.nan
    parts = np.diff(data, axis=1, prepend=0) * n
    small, large = (parts**2).sum(-1).mean(), (data[:, -1] ** 2).sum(-1).mean()
    return (small - large) / (1 - 1 / n) * b / ((n * large - small) / (n - 1))


RESULT = "sum(traces) / sum(squares)"
for bug, *changes in (
    ("ratio-first", (RESULT, "sum(t / s for t, s in zip(traces, squares)) / len(squares)")),
    ("inflated-norm", (RESULT, "sum(traces) / sum(window[-1].square().sum() for window in snapshots)")),
    ("loss-scale", ("part * n", "part")),
    ("running-sum", ("in added(window)", "in window")),
    (
        "not-squared",
        ("(part * n).square().sum()", "(part * n).norm()"),
        ("window[-1].square().sum()", "window[-1].norm()"),
    ),
    ("not-averaged", ("for part in added(window)) / n", "for part in added(window))")),
    ("one-window", (RESULT, "traces[0] / squares[0]")),
    ("last-only", ("for part in added(window)) / n", "for part in added(window)[-1:])")),
    ("wrong-unit", ("b, n * b)", "1, n)")),
    ("swapped", (RESULT, "sum(squares) / sum(traces)")),
    ("one-size", ("math.nan", "math.inf")),
    ("changed-input", (f"return {RESULT}", f"snapshots[0].insert(0, snapshots[0][0])\n    return {RESULT}")),
):
    wrong("noise_scale", bug)(edited("noise_scale", *changes))
