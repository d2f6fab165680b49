"""record() and the audit know the same optimizers and the same windows, also of loops that are hard to see through."""

import pytest
import torch
from torch.optim import LBFGS, SGD, Adam

import exhaustive
from correct_programs import PROGRAMS, batches, net
from course_utils import record
from course_utils.zoo import ZOO
from gradaudit import audit
from gradaudit.watch.by_hand import BY_HAND


class CallsInheritedStep(SGD):
    def step(self, closure=None):
        return super().step(closure)


class Wrapper(torch.optim.Optimizer):
    """As Accelerate's: an optimizer by its class, which holds another and lets it do the work."""

    def __init__(self, inner):
        self.inner = inner
        self.param_groups, self.defaults = inner.param_groups, inner.defaults

    def step(self, closure=None):
        return self.inner.step(closure)

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)


def train(model, optimizer, n=2):
    for i, (x, y) in enumerate(batches(3 * n)):
        (torch.nn.functional.cross_entropy(model(x), y) / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()


def inherited_step():
    SGD([torch.zeros(1)], lr=0.1)  # PyTorch hooks the step of a class when it makes the first optimizer of it
    model = net()
    train(model, CallsInheritedStep(model.parameters(), lr=0.1))


def dropped_and_created_again():
    model = net()
    for _ in range(2):
        optimizer = SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    del optimizer
    optimizer = SGD(model.parameters(), lr=0.1)
    train(model, optimizer, n=3)


def wrapper():
    model = net()
    train(model, Wrapper(Adam(model.parameters())))


def closures():
    for optimizer_class in (SGD, CallsInheritedStep, LBFGS):
        for zero in (True, False):
            model = net()
            optimizer = optimizer_class(model.parameters(), lr=0.01)
            for x, y in batches(3):

                def closure(x=x, y=y, zero=zero, model=model, optimizer=optimizer):
                    if zero:
                        optimizer.zero_grad()
                    for _ in range(2):
                        loss = torch.nn.functional.cross_entropy(model(x), y)
                        loss.backward()
                    return loss

                optimizer.step(closure)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        (inherited_step, {"CallsInheritedStep": [2, 2, 2]}),
        (dropped_and_created_again, {"SGD": [2, 2, 2], "SGD 2": [3, 3, 3]}),
        (wrapper, {"Adam": [2, 2, 2]}),
        (
            closures,
            {
                **{"SGD": [2, 2, 2], "SGD 2": [2, 4, 6]},
                **{"CallsInheritedStep": [2, 2, 2], "CallsInheritedStep 2": [2, 4, 6], "LBFGS": [2, 2, 2]},
            },
        ),
    ],
)
def test_record_and_the_audit_agree(loop, expected):
    with record() as trace, audit() as report:
        loop()
    audited = {each.name: [update.held for update in each.updates] for each in report.history.records}
    for lane, windows in expected.items():
        assert trace.windows(lane) == audited[lane] == windows


LOOPS = PROGRAMS | {f"{name}, {kind}": getattr(ZOO[name], kind) for name in ZOO for kind in ("buggy", "fixed")}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", exhaustive.mark(LOOPS, but=[*LOOPS][::4]))
def test_record_and_the_audit_agree_on_correct_programs_and_on_the_zoo(name):
    """Of updates that a scaler skips the audit keeps a record; those by hand are in no trace."""
    with record() as trace, audit() as report:
        LOOPS[name].declare = report.declare_window  # one of the programs uses it
        LOOPS[name]()
    recorded = {lane: windows for lane in trace.lanes if (windows := trace.windows(lane))}
    audited = {each.name: [u.held for u in each.updates if not u.skipped] for each in report.history.records}
    assert recorded == {lane: held for lane, held in audited.items() if held and not lane.startswith(BY_HAND)}
