"""A backward call outside the loop that brings nothing but zeros, as where a first call initialises a wrapper."""

import pytest
import torch
from runs import data, found, net, update, with_sgd
from torch.nn import functional as F
from torch.optim import SGD

from gradaudit import audit
from gradaudit.history import Backward, History, Window


def zeros(model):
    (model(torch.randn(4, 3)) * 0).mean().backward()


def steps(model, optimizer, n, count=12, loss=lambda out, y: F.cross_entropy(out, y)):
    for i, (x, y) in enumerate(data(count)):
        (loss(model(x), y) / n).backward()
        if (i + 1) % n == 0:
            update(optimizer)


def by_hand(out, y):
    return (out - F.one_hot(y, 2)).square().mean()  # a mean, like the loss of the call of zeros


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("loss", [by_hand, lambda out, y: F.cross_entropy(out, y)])
@pytest.mark.parametrize("late", [False, True])
def test_a_call_of_zeros_before_the_loop_is_no_micro_batch(n, loss, late):
    model, optimizer = with_sgd()
    with audit() as report:
        if late:
            optimizer = None
        zeros(model)
        steps(model, optimizer or SGD(model.parameters(), lr=0.1), n, loss=loss)
    assert found(report) == []
    assert [w.size for w in report.history.windows] == [n] * (12 // n)


def test_a_call_before_the_loop_that_brings_more_than_zeros_counts():
    model, optimizer = with_sgd()
    with audit() as report:
        (model(torch.randn(4, 3)) * 1e-3).mean().backward()
        steps(model, optimizer, 4, loss=by_hand)
    assert ("stale-gradients", "error") in found(report)


def test_a_call_of_zeros_after_the_loop_leaves_nothing():
    model, optimizer = with_sgd()
    with audit() as report:
        steps(model, optimizer, 4)
        zeros(model)
    assert found(report) == []


@pytest.mark.parametrize("masked", [0, 1])
def test_a_micro_batch_of_the_loop_that_brings_zeros_counts(masked):
    model, n = net(), 2
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        for i, (x, y) in enumerate(data()):
            (F.cross_entropy(model(x), y) * (i != masked) / n).backward()
            if i % n:
                update(optimizer)
    assert [w.size for w in report.history.windows] == [2, 2, 2, 2]


@pytest.mark.parametrize(("value", "left"), [(0.0, [2, 3]), (0.5, [1, 2, 3])])
def test_on_a_gpu_a_loss_of_zero_tells(value, left):
    def call(number, line):
        made = Backward(number, "train.py:1", line)
        made.lanes, made.value = ("SGD",), torch.tensor(value)  # a tensor: it is still on the device
        return made

    window = Window()
    window.lane, window.fresh = "SGD", [call(1, "before"), call(2, "loop"), call(3, "loop")]
    history = History()
    history.windows.append(window)
    history.backwards += window.fresh
    history.leave_out_zeros()
    assert [each.number for each in window.fresh] == left
