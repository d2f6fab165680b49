"""An interrupt at any line leaves nothing behind: `pytest tests/endurance`."""

import random
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import lr_scheduler

from course_utils import record, train_epoch
from gradaudit import audit
from hooked import hooks

pytestmark = pytest.mark.usefixtures("interruptible")


def set_back() -> None:
    """What one case may have left is not held against the next one."""
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)
    torch.clear_autocast_cache()


class Clock:
    """Counts the lines that Python runs, and sends the interrupt of Ctrl-C at one of them."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.lines, self.where = at, 0, ""

    def __call__(self, frame, event, arg):
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self

    def run(self, work) -> bool:
        """Was it interrupted?"""
        sys.settrace(self)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False


def points(work, many: int) -> list[int]:
    """Some of the lines that this runs."""
    work()  # what is imported or set up once
    clock = Clock()
    assert not clock.run(work)
    return random.Random(0).sample(range(1, clock.lines), many)


class Training:
    """A small training with all that an update can have."""

    def __init__(self, optimizer) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()
        self.optimizer = optimizer(self.model.parameters())
        self.scheduler = lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.scaler = GradScaler("cpu")
        self.scaler.scale(torch.ones(()))  # sets it up, in the middle of which an interrupt would leave it half done
        self.batches = [torch.randn(2, 3, dtype=torch.float64) for _ in range(7)]

    def __call__(self) -> list[float]:
        return train_epoch(
            self.model, self.batches, lambda model, x: model(x).square().mean(), self.optimizer, 3,
            max_norm=1.0, scheduler=self.scheduler, scaler=self.scaler,
        )  # fmt: skip


@pytest.mark.parametrize("watched", [nullcontext, record, audit], ids=["alone", "record", "audit"])
@pytest.mark.parametrize(
    "optimizer",
    [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.01)],
    ids=["SGD", "Adam"],
)
def test_after_each_of_a_hundred_interrupts_no_hook_is_left_and_training_goes_on(watched, optimizer):
    def work():
        with watched():
            training()

    training = Training(optimizer)
    before, wrong, interrupted = hooks(), [], 0
    for point in points(work, 400):  # a run may have fewer lines than the one that was counted
        if interrupted == 100:
            break
        training, clock = Training(optimizer), Clock(point)
        interrupted += clock.run(work)
        try:
            assert hooks() == before
            with record() as trace:
                losses = training()
            assert trace.updates() == [3, 3, 1]
            assert torch.tensor(losses).isfinite().all()
            assert hooks() == before
        except Exception as error:
            wrong.append((clock.where, repr(error)[:200]))
            set_back()
    assert wrong == []
    assert interrupted == 100
