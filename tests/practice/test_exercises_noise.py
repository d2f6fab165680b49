"""The judge "noise_scale": right answers pass in whatever style, wrong ones are rejected by the name of their bug."""

import math
from statistics import fmean

import pytest
import torch
from mutations import mutants

from course_utils.practice.exercises import judge


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


RIGHT = [reference, by_sample_variance, in_plain_python, in_place]


@pytest.mark.parametrize("right", RIGHT)
def test_right_answers_pass(right):
    verdict = judge("noise_scale", right)
    assert verdict.passed, verdict.message


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


WRONG = {
    "ratio-first": [
        estimate(small, large, lambda square, trace: (trace / square).mean()),
        estimate(small, large, lambda square, trace: (trace / square).median()),
    ],
    "loss-scale": [
        estimate(lambda window, n: pieces_of(window).square().sum(1).mean(), large),
        estimate(lambda window, n: n * pieces_of(window).square().sum(1).mean(), large),
        estimate(small, lambda window, n: (n * window[-1]).square().sum()),
    ],
    "running-sum": [
        estimate(sum_of_windows(lambda n: 1), large),
        estimate(sum_of_windows(lambda n: n), large),
        estimate(sum_of_windows(lambda n: n / torch.arange(1.0, n + 1)[:, None]), large),
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
        estimate(small, large, sizes=lambda n, b: (n * b, b)),
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
        lambda snapshots, b: 1 / 0 if len(snapshots[0]) == 1 else reference(snapshots, b),
    ],
    "not-attempted": [lambda *_: None, lambda *_: ...],
    "wrong-type": [lambda *_: "noise", lambda *_: [1.0, 2.0], lambda *_: 1j, lambda *_: torch.ones(2), lambda *_: {}],
    "wrong-value": [lambda *_: math.nan, lambda *_: math.inf, lambda *_: 0.0, lambda *_: True],
    "raises": [lambda: 1.0, lambda snapshots, b: snapshots[99], lambda snapshots, b: snapshots.clear() or 1 / 0],
    "not-a-function": [None, 3, "noise"],
}


@pytest.mark.parametrize("bug", WRONG)
def test_wrong_answers_are_rejected_by_the_name_of_their_bug(bug):
    for wrong in WRONG[bug]:
        verdict = judge("noise_scale", wrong)
        assert verdict.bug == bug, verdict.message
        assert verdict.message


def test_the_message_shows_the_case_and_both_numbers():
    message = judge("noise_scale", WRONG["ratio-first"][0]).message
    assert message.startswith("6 windows of 4 micro-batches of 8 items: expected ")
    assert ", got " in message


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_verdict_does_not_depend_on_the_default_dtype_and_leaves_it_alone(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert judge("noise_scale", by_sample_variance).passed
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(before)


def results(answer):
    """What an answer gives on inputs that the judge does not use."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for windows, n, b in ((3, 2, 1), (5, 3, 4), (2, 6, 3), (1, 2, 2), (4, 1, 5)):
        pieces = 1 + torch.randn((windows, n, 20), generator=generator, dtype=torch.float64)
        try:
            found.append(float(answer([list((window / n).cumsum(0)) for window in pieces], b)))
        except Exception as error:
            found.append(type(error))
    return found


def alike(got, want):
    if isinstance(got, type):  # it raised
        return False
    return math.isclose(got, want, rel_tol=1e-9) or (math.isnan(got) and math.isnan(want))


@pytest.mark.mutations
def test_mutations_of_the_reference_are_rejected_if_and_only_if_they_change_a_result():
    right, rejected = results(reference), 0
    for change, mutant in mutants(reference):
        same = all(map(alike, results(mutant), right))
        assert judge("noise_scale", mutant).passed == same, change
        rejected += not same
    assert rejected > 50
