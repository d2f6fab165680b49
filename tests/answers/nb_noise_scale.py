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
for bug, change in (
    ("wrong-value", (RESULT, "sum(t / s for t, s in zip(traces, squares)) / len(squares)")),
    ("wrong-value", (RESULT, "sum(traces) / sum(window[-1].square().sum() for window in snapshots)")),
    ("wrong-value", ("part * n", "part")),
    ("wrong-value", ("in added(window)", "in window")),
    ("wrong-value", (RESULT, "traces[0] / squares[0]")),
    ("wrong-value", ("b, n * b)", "1, n)")),
    ("wrong-value", ("math.nan", "math.inf")),
    ("changed-input", (f"return {RESULT}", f"snapshots[0].insert(0, snapshots[0][0])\n    return {RESULT}")),
):
    wrong("noise_scale", bug)(edited("noise_scale", change))
