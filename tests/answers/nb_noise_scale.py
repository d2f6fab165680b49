"""Answers to "noise_scale": the gradient noise scale, from copies of `.grad`."""

import math

import numpy as np
import torch

from answers import edited, right, wrong


@right("noise_scale")
def by_sample_variance(snapshots, b):
    """The trace is the sample variance of the micro-batches' gradients, with n - 1, times b."""
    stacked = torch.stack([torch.stack(window) for window in snapshots])
    n = stacked.shape[1]
    if n == 1:
        return math.nan
    pieces = n * torch.diff(stacked, dim=1, prepend=torch.zeros_like(stacked[:, :1]))
    trace = b * pieces.var(dim=1, correction=1).sum(1)
    square = stacked[:, -1].square().sum(1) - trace / (n * b)
    return trace.mean() / square.mean()


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
    ("swapped", (RESULT, "sum(squares) / sum(traces)")),
    ("one-window", (RESULT, "traces[0] / squares[0]")),
    ("not-averaged", (RESULT, "len(squares) * sum(traces) / sum(squares)")),
    ("inflated-norm", (RESULT, "sum(traces) / sum(window[-1].square().sum() for window in snapshots)")),
    ("loss-scale", ("part * n", "part")),
    ("running-sum", ("in added(window)", "in window")),
    ("last-only", (" in added(window)) / n", " in added(window)[-1:])")),
    (
        "not-squared",
        ("(part * n).square().sum()", "(part * n).norm()"),
        ("window[-1].square().sum()", "window[-1].norm()"),
    ),
    ("wrong-unit", (", b, n * b", ", 1, n")),
    ("one-size", ("math.nan", "math.inf")),
    ("low-precision", (RESULT, f"round(float({RESULT}), 3)")),
    ("wrong-type", (RESULT, f"str({RESULT})")),
    ("changed-input", (f"return {RESULT}", f"snapshots[0].insert(0, snapshots[0][0])\n    return {RESULT}")),
    ("raises", ("squares, traces = [], []", "snapshots[99]")),
):
    wrong("noise_scale", bug)(edited("noise_scale", *changes))
