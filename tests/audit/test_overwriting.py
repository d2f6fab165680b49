"""A backward that writes each gradient to the same place, as a CUDA graph does, overwrites what `.grad` has adopted."""

import pytest
import torch
from runs import found, update
from torch.autograd import Function
from torch.nn import Embedding, Parameter
from torch.optim import SGD

from gradaudit import audit

SLOPES = (1.0, 10.0, 100.0)


class Replayed(Function):
    """Multiplies by a slope. Its backward fills one tensor, always the same."""

    static = torch.zeros(3)

    @staticmethod
    def forward(ctx, w, slope, fails=False):
        ctx.slope, ctx.fails = slope, fails
        return (w * slope).sum()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.fails:
            raise ArithmeticError
        return Replayed.static.fill_(ctx.slope).mul_(gradient).detach(), None, None


def one_window(w, optimizer, slopes=SLOPES):
    sums = []
    for slope in slopes:
        Replayed.apply(w, slope).backward()
        sums.append(w.grad[0].item())
    optimizer.step()
    return sums


def test_a_gradient_that_is_overwritten_before_it_is_added_to_is_an_error():
    w = Parameter(torch.ones(3))
    optimizer = SGD([w], lr=0.1)
    with audit() as report:
        assert one_window(w, optimizer) == [1, 20, 200]
        optimizer.zero_grad()
        one_window(w, optimizer)
    assert ("discarded-gradients", "error") in found(report)
    (finding,) = [f for f in report.errors if f.rule == "discarded-gradients"]
    assert finding.evidence == {"first": 2, "overwritten": 1}
    assert "set_to_none=False" in finding.fix


def test_a_gradient_with_memory_of_its_own_is_added_to():
    w = Parameter(torch.ones(3))
    w.grad = torch.zeros(3)
    optimizer = SGD([w], lr=0.1)
    with audit() as report:
        for _ in range(2):
            assert one_window(w, optimizer) == [1, 11, 111]
            optimizer.zero_grad(set_to_none=False)
    assert "discarded-gradients" not in report.rules


def test_without_accumulation_nothing_is_overwritten():
    w = Parameter(torch.ones(3))
    optimizer = SGD([w], lr=0.1)
    with audit() as report:
        for slope in SLOPES:
            one_window(w, optimizer, [slope])
            optimizer.zero_grad()
    assert "discarded-gradients" not in report.rules


def test_gradients_without_an_address_are_left_out():
    table, w = Embedding(9, 3, sparse=True), Parameter(torch.ones(0))
    optimizer = SGD([*table.parameters(), w], lr=0.1)
    with audit() as report:
        for _ in range(2):
            for _ in range(2):
                (table(torch.tensor([1, 2])).mean() / 2 + w.sum()).backward()
            update(optimizer)
    assert "discarded-gradients" not in report.rules


def test_the_hooks_are_removed_also_after_an_error():
    w = Parameter(torch.ones(3))
    optimizer = SGD([w], lr=0.1)
    with audit():
        one_window(w, optimizer)
        with pytest.raises(ArithmeticError):
            Replayed.apply(w, 1.0, True).backward()
        assert not w._backward_hooks
