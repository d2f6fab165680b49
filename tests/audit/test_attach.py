"""Audits and records leave nothing behind: all patched attributes and hooks are as before, however a block ends."""

import gc
import traceback
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, lr_scheduler

from course_utils import record
from course_utils.recording import Trace
from gradaudit import audit
from gradaudit.observe.guard import ObserverFailure
from gradaudit.observe.observer import Observer, observing
from gradaudit.watch.auditor import Auditor
from runs import attached, net


def step(model, optimizer):
    F.cross_entropy(model(torch.randn(4, 3)), torch.randint(2, (4,))).backward()
    optimizer.step()


@pytest.fixture
def before():
    SGD([torch.zeros(1)], lr=0.1)  # PyTorch wraps a class's step when the first of it is made
    return attached()


def test_an_audit_patches_something_or_these_tests_see_nothing(before):
    with audit():
        attributes, hooks = attached()
        changed = {(getattr(owner, "__name__", ""), name) for owner, name in attributes if attributes[owner, name]
                   != before[0].get((owner, name))}  # fmt: skip
        assert {("Optimizer", "zero_grad"), ("torch.autograd", "backward"), ("LRScheduler", "step")} <= changed
        assert sum(hooks[key] != before[1][key] for key in hooks) == 2
    assert attached() == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_after_an_error_all_is_as_before_and_the_findings_are_there(before, error):
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    mine = dict(optimizer.__dict__)
    with pytest.raises(error), audit(strict=True) as report:  # noqa: PT012
        step(model, optimizer)
        step(model, optimizer)
        raise error
    assert attached() == before
    assert report.rules == ["stale-gradients"]
    assert optimizer.__dict__ == mine
    assert not model.weight._backward_hooks
    assert not model._forward_hooks


@pytest.mark.parametrize("broken", range(1, 12, 5))
def test_where_attaching_fails_all_is_as_before(before, monkeypatch, broken):
    original, calls = Observer.patch, []

    def patch(self, *args, **kwargs):
        calls.append(args)
        if len(calls) == broken:
            raise RuntimeError("no patch")
        original(self, *args, **kwargs)

    monkeypatch.setattr(Observer, "patch", patch)
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.warns(ObserverFailure, match="no patch"), audit() as report:
        step(model, optimizer)
    assert attached() == before
    assert not report.history.calls


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
    assert attached() == before
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
    assert [(each.name, each.made) for each in listener.history.records] == [("SGD", 2)]


# The auditor's own frames stay out of what the user reads: tracebacks, and the lines that warnings point to


def files(error):
    return {frame.filename for frame in traceback.extract_tb(error.__traceback__)}


def of_auditor(error):
    return {file for file in files(error) if "course_utils/recording" in file or "gradaudit" in file}


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ArithmeticError("in the backward of the script")


def fail():
    Failing.apply(net().weight).sum().backward()


def test_an_error_inside_backward_leaves_the_audit_without_frames_of_the_auditor_and_all_is_as_before(before):
    with pytest.raises(ArithmeticError) as plain:
        fail()
    with pytest.raises(ArithmeticError) as caught, audit(), audit() as report:
        fail()
    assert attached() == before
    assert not report.history.overlapping
    assert not of_auditor(caught.value)
    assert files(caught.value) == files(plain.value)
    lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert lines[-1] == 'raise ArithmeticError("in the backward of the script")'
    assert "Failing.apply(net().weight).sum().backward()" in lines


def test_the_errors_that_led_to_an_error_are_cleared_too_at_the_end_of_the_block():
    with pytest.raises(KeyError) as caught, audit():  # noqa: PT012
        with pytest.raises(ArithmeticError) as inner:
            fail()
        assert of_auditor(inner.value)
        raise KeyError("later") from inner.value
    assert not of_auditor(caught.value)
    assert not of_auditor(caught.value.__cause__)


def test_an_error_of_the_auditor_itself_keeps_its_frames(monkeypatch):
    monkeypatch.setattr("gradaudit.watch.graphs.watch_terms", None)
    with pytest.raises(ObserverFailure, match="not callable") as caught, audit():
        net().weight.sum().backward()  # here, where a filter makes an error of this warning
    assert any("auditor.py" in file for file in of_auditor(caught.value.__context__))


def test_a_warning_points_at_the_line_that_it_points_at_without_the_audit():
    def warned():
        scheduler = lr_scheduler.StepLR(SGD(net().parameters(), lr=0.1), 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            scheduler.step(epoch=3)  # warns: before optimizer.step(), and deprecated
        return [(str(w.message)[:60], w.filename, w.lineno) for w in caught]

    plain = warned()
    assert plain
    with audit():
        assert warned() == plain
    with audit(), audit():
        assert warned() == plain
