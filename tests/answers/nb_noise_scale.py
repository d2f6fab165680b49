"""Answers to "noise_scale": the gradient noise scale, from copies of `.grad`."""

import math
from statistics import fmean

import numpy as np
import torch

from answers import right, wrong


@right("noise_scale")
def reference(snapshots, b):
    n = len(snapshots[0])
    if n == 1:
        return math.nan
    square = trace = 0.0
    for window in snapshots:
        before = torch.zeros_like(window[0])
        small = 0.0
        for grad in window:
            small += (n * (grad - before)).square().sum() / n
            before = grad
        large = before.square().sum()
        square += (n * b * large - b * small) / (n * b - b)
        trace += (small - large) / (1 / b - 1 / (n * b))
    return trace / square


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
def in_plain_python(snapshots, b):
    squares, traces = [], []
    for window in snapshots:
        n, rows = len(window), [grad.tolist() for grad in window]
        whole = n * b
        if whole == b:
            return float("nan")
        pieces = [
            [n * (x - y) for x, y in zip(now, then, strict=True)]
            for then, now in zip([[0.0] * len(rows[0]), *rows], rows, strict=False)
        ]
        small = fmean(sum(x * x for x in piece) for piece in pieces)
        large = sum(x * x for x in rows[-1])
        squares.append((whole * large - b * small) / (whole - b))
        traces.append((small - large) / (1 / b - 1 / whole))
    return fmean(traces) / fmean(squares)


@wrong("noise_scale", "changed-input")
def in_place(snapshots, b):
    n = len(snapshots[0])
    large = sum(window[-1].square().sum() for window in snapshots)
    for window in snapshots:
        for k in reversed(range(1, n)):
            window[k] -= window[k - 1]
        for grad in window:
            grad *= n
    small = sum(grad.square().sum() for window in snapshots for grad in window) / n
    try:
        return ((small - large) / (1 / b - 1 / (n * b)) / ((n * large - small) / (n - 1))).item()
    except ZeroDivisionError:
        return math.nan


@right("noise_scale")
def in_numpy(snapshots, b):
    data = np.array([[grad.numpy() for grad in window] for window in snapshots])
    n = data.shape[1]
    if n < 2:
        return np.nan
    parts = np.diff(data, axis=1, prepend=0) * n
    small, large = (parts**2).sum(-1).mean(), (data[:, -1] ** 2).sum(-1).mean()
    return (small - large) / (1 - 1 / n) * b / ((n * large - small) / (n - 1))


@right("noise_scale")
def by_products_of_pairs(snapshots: list[list[torch.Tensor]], b: int) -> float:
    """Products of different micro-batches have the squared true gradient as their mean."""
    if not snapshots or len(snapshots[0]) == 1:
        return float("nan")
    square = trace = 0.0
    for window in snapshots:
        n = len(window)
        parts = [n * (now - then) for then, now in zip([0 * window[0], *window], window)]  # noqa: B905
        products = [float(x @ y) for i, x in enumerate(parts) for j, y in enumerate(parts) if i != j]
        mean_product = math.fsum(products) / len(products)
        square += mean_product
        trace += b * (math.fsum(float(x @ x) for x in parts) / n - mean_product)
    return trace / square


def pieces_of(window):
    return torch.diff(torch.stack(window), dim=0, prepend=torch.zeros_like(window[0])[None])


def estimate(small, large, ratio=lambda square, trace: trace.mean() / square.mean(), sizes=lambda n, b: (b, n * b)):
    """An answer from functions of one window: its micro-batches' mean squared norm and its own squared norm."""

    def answer(snapshots, b):
        n = len(snapshots[0])
        if n == 1:
            return math.nan
        smalls = torch.stack([small(window, n) for window in snapshots])
        larges = torch.stack([large(window, n) for window in snapshots])
        b, whole = sizes(n, b)
        square = (whole * larges - b * smalls) / (whole - b)
        trace = (smalls - larges) / (1 / b - 1 / whole)
        return ratio(square, trace)

    return answer


def small(window, n):
    return (n * pieces_of(window)).square().sum(1).mean()


def large(window, n):
    return window[-1].square().sum()


def sum_of_windows(factor):
    return lambda window, n: (factor(n) * torch.stack(window)).square().sum(1).mean()


def changed_result(change):
    return lambda snapshots, b: change(reference(snapshots, b), snapshots, b)


def inserts_zeros(snapshots, b):
    if len(snapshots[0]) == 1:
        return math.nan
    found = reference(snapshots, b)
    for window in snapshots:
        window.insert(0, torch.zeros_like(window[0]))
    return found


MORE = {
    "low-precision": [
        changed_result(lambda found, snapshots, b: round(float(found), 3)),
        changed_result(lambda found, snapshots, b: round(float(found), 4)),
    ],
    "changed-input": [
        inserts_zeros,
    ],
    "wrong-unit": [
        changed_result(lambda found, snapshots, b: found / b),
    ],
    "not-averaged": [
        estimate(small, large, lambda square, trace: trace.sum() / square.mean()),
    ],
    "inflated-norm": [
        lambda snapshots, b: (
            estimate(small, large, lambda square, trace: trace.mean())(snapshots, b)
            / torch.stack([small(window, len(window)) for window in snapshots]).mean()
        )
    ],
    "last-only": [
        estimate(lambda window, n: (n * pieces_of(window)[0]).square().sum(), large),
    ],
}

WRONG = {
    "ratio-first": [
        estimate(small, large, lambda square, trace: (trace / square).mean()),
    ],
    "loss-scale": [
        estimate(lambda window, n: pieces_of(window).square().sum(1).mean(), large),
        estimate(lambda window, n: n * pieces_of(window).square().sum(1).mean(), large),
    ],
    "running-sum": [
        estimate(sum_of_windows(lambda n: 1), large),
        estimate(sum_of_windows(lambda n: n), large),
    ],
    "not-averaged": [estimate(lambda window, n: n * small(window, n), large)],
    "not-squared": [
        estimate(
            lambda window, n: (n * pieces_of(window)).square().sum(1).sqrt().mean(),
            lambda window, n: window[-1].square().sum().sqrt(),
        ),
        estimate(lambda window, n: (n * pieces_of(window)).square().sum(1).sqrt().mean() ** 2, large),
    ],
    "swapped": [
        estimate(small, large, lambda square, trace: square.mean() / trace.mean()),
        estimate(large, small),
    ],
    "wrong-unit": [estimate(small, large, sizes=lambda n, b: (1, n))],
    "inflated-norm": [
        lambda snapshots, b: (
            estimate(small, large, lambda square, trace: trace.mean())(snapshots, b)
            / torch.stack([window[-1].square().sum() for window in snapshots]).mean()
        )
    ],
    "one-window": [
        estimate(small, large, lambda square, trace: trace[0] / square[0]),
        lambda snapshots, b: reference(snapshots[-1:], b),
    ],
    "last-only": [estimate(lambda window, n: (n * pieces_of(window)[-1]).square().sum(), large)],
    "one-size": [
        lambda snapshots, b: math.inf if len(snapshots[0]) == 1 else reference(snapshots, b),
        lambda snapshots, b: None if len(snapshots[0]) == 1 else reference(snapshots, b),
    ],
    "not-attempted": [lambda *_: None, lambda *_: ...],
    "wrong-type": [
        lambda *_: "noise",
        lambda *_: [1.0, 2.0],
    ],
    "wrong-value": [
        lambda *_: math.nan,
        lambda *_: math.inf,
    ],
    "raises": [lambda: 1.0, lambda snapshots, b: snapshots[99]],
    "not-a-function": [None, 3],
}


for bug, answers in WRONG.items():
    for answer in answers:
        wrong("noise_scale", bug)(answer)

for bug, answers in MORE.items():
    for answer in answers:
        wrong("noise_scale", bug)(answer)


wrong("noise_scale", "ratio-first")(WRONG["ratio-first"][0])
