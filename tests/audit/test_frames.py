"""The auditor's own frames stay out of what the user reads: tracebacks, and the lines that warnings point to."""

import traceback
import warnings

import pytest
import torch
from runs import net
from torch.optim import SGD, lr_scheduler

from gradaudit import audit
from gradaudit.frames import without_auditor
from gradaudit.observe.guard import ObserverFailure


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


def fail_in_another_audit():
    with audit():
        fail()


@pytest.mark.parametrize("script", [fail, fail_in_another_audit])
def test_an_error_inside_backward_leaves_the_audit_without_frames_of_the_auditor(script):
    with pytest.raises(ArithmeticError) as plain:
        fail()
    with pytest.raises(ArithmeticError) as caught, audit():
        script()
    assert not of_auditor(caught.value)
    assert files(caught.value) == files(plain.value)
    lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert lines[-1] == 'raise ArithmeticError("in the backward of the script")'
    assert "Failing.apply(net().weight).sum().backward()" in lines


def test_inside_the_block_the_frames_are_still_there():  # which is why they are taken out at its end
    with audit(), pytest.raises(ArithmeticError) as caught:
        fail()
    assert of_auditor(caught.value)
    assert not of_auditor(without_auditor(caught.value))


def test_the_errors_that_led_to_an_error_are_cleared_too():
    def fail_and_go_on():
        try:
            fail()
        except ArithmeticError as error:
            raise KeyError("later") from error

    with pytest.raises(KeyError) as caught, audit():
        fail_and_go_on()
    assert not of_auditor(caught.value)
    assert not of_auditor(caught.value.__cause__)


def test_an_error_of_the_auditor_itself_keeps_its_frames(monkeypatch):
    monkeypatch.setattr("gradaudit.watch.graphs.watch_terms", None)
    with pytest.raises(ObserverFailure, match="not callable") as caught, audit():
        net().weight.sum().backward()  # here, where a filter makes an error of this warning
    assert any("auditor.py" in file for file in of_auditor(caught.value.__context__))


def early_scheduler():
    optimizer = SGD(net().parameters(), lr=0.1)
    lr_scheduler.StepLR(optimizer, 1).step()  # warns: before optimizer.step()


def scheduler_with_an_epoch():
    optimizer = SGD(net().parameters(), lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    scheduler.step(epoch=3)  # warns: deprecated


@pytest.mark.parametrize("script", [early_scheduler, scheduler_with_an_epoch])
def test_a_warning_points_at_the_line_that_it_points_at_without_the_audit(script):
    def warned():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            script()
        return [(str(w.message)[:60], w.filename, w.lineno) for w in caught]

    plain = warned()
    assert plain
    with audit():
        assert warned() == plain
    with audit(), audit():
        assert warned() == plain
