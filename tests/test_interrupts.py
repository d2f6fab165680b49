"""Ctrl-C waits for what is under way. Interrupts at a hundred random lines: tests/endurance."""

import signal

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

from course_utils import train_epoch
from gradaudit.interrupts import uninterrupted

pytestmark = pytest.mark.usefixtures("interruptible")


def test_an_interrupt_in_the_step_comes_when_the_update_is_whole():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler, steps = ExponentialLR(optimizer, 0.5), []
    optimizer.register_step_pre_hook(lambda *_: signal.raise_signal(signal.SIGINT))
    optimizer.register_step_post_hook(lambda *_: steps.append(model.weight.grad.clone()))
    before = model.weight.detach().clone()
    with pytest.raises(KeyboardInterrupt):
        train_epoch(model, torch.ones(3, 1, 2), lambda model, x: model(x).mean(), optimizer, scheduler=scheduler)
    assert len(steps) == 1
    assert torch.equal(model.weight, before - 0.1 * steps[0])
    assert scheduler.get_last_lr() == [0.05]
    assert model.weight.grad is None


def test_the_error_of_an_interrupted_block_is_the_context_of_the_interrupt():
    def fails():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            raise ZeroDivisionError

    with pytest.raises(KeyboardInterrupt) as caught:
        fails()
    assert isinstance(caught.value.__context__, ZeroDivisionError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
