"""Audits and records leave no patched attribute and no hook behind, however a block ends."""

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from course_utils import record
from course_utils.record import Trace
from gradaudit import audit
from gradaudit.observe.observer import observing
from gradaudit.probes.auditor import Auditor
from hooked import hooks
from runs import net


def step(model, optimizer):
    F.cross_entropy(model(torch.randn(4, 3)), torch.randint(2, (4,))).backward()
    optimizer.step()


@pytest.fixture
def before():
    SGD([torch.zeros(1)], lr=0.1)  # PyTorch wraps a class's step when the first of it is made
    return hooks()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_after_an_error_all_is_as_before_and_the_findings_are_there(before, error):
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    mine = dict(optimizer.__dict__)
    with pytest.raises(error), record() as trace, audit(strict=True) as report:  # noqa: PT012
        step(model, optimizer)
        step(model, optimizer)
        raise error
    assert hooks() == before
    assert report.rules == ["stale-gradients"]
    assert optimizer.__dict__ == mine
    assert not model.weight._backward_hooks
    assert not model.weight._post_accumulate_grad_hooks
    assert not model._forward_hooks
    step(model, optimizer)
    assert trace.updates() == [1, 2]


def test_a_patch_that_somebody_kept_is_idle_after_the_audit(before):
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    with audit() as report:
        kept = optimizer.zero_grad
        step(model, optimizer)
    kept()
    step(model, optimizer)
    assert model.weight.grad is not None
    assert report.history.calls.total == report.history.updates_made == 1


@pytest.mark.parametrize("outer", [record, audit])
@pytest.mark.parametrize("inner", [record, audit])
@pytest.mark.parametrize("in_order", [True, False], ids=["nested", "overlapping"])
def test_two_blocks_leave_nothing_patched_in_whatever_order_they_end(before, outer, inner, in_order):
    first, second = outer(), inner()
    seen = [first.__enter__(), second.__enter__()]
    for block in (second, first) if in_order else (first, second):
        model = nn.Linear(3, 2)
        step(model, SGD(model.parameters(), lr=0.1))
        block.__exit__(None, None, None)
    assert hooks() == before
    updates = [
        sum(event.kind == "step" for event in thing.events) if isinstance(thing, Trace) else thing.history.updates_made
        for thing in seen
    ]
    assert updates == ([2, 1] if in_order else [1, 2])


def test_an_optimizer_that_cannot_be_found_in_the_heap_is_found_at_its_first_step():
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    gc.freeze()  # gc.get_referrers() passes over what is frozen
    try:
        listener = Auditor()
        with observing(listener):
            for _ in range(2):
                model(torch.ones(1, 3)).sum().backward()
                step(model, optimizer)
            assert listener.observer.by_hand == []  # the record that its parameters had for one backward call is gone
    finally:
        gc.unfreeze()
    assert [(each.name, each.made) for each in listener.history.ledgers] == [("SGD", 2)]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_inside_backward_is_raised_and_all_is_as_before(before, error):
    def fail(_):
        raise error

    model = net()
    model.bias.register_hook(fail)
    with pytest.raises(error), record(), audit(), audit() as report:
        model(torch.ones(1, 3)).sum().backward()
    assert hooks() == before
    assert not model.weight._post_accumulate_grad_hooks
    assert not report.history.overlapping
