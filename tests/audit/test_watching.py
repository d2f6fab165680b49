"""The auditor: its probe, and loops that are hard to see through."""

import gc
import threading
import weakref

import pytest
import torch
from torch.nn import functional as F
from torch.optim import SGD

from course_utils import record
from gradaudit import audit
from gradaudit.observe.ledger import Kept
from runs import data, mean, net, train, update, with_sgd

# The probe


def with_its_own_hook(loss):
    loss.register_hook(lambda gradient: gradient / 4)
    loss.backward()


@pytest.mark.parametrize(
    ("backward", "coefficient"),
    [
        (lambda loss: loss.backward(), 1.0),
        (lambda loss: loss.backward(torch.tensor(0.25)), 0.25),
        (lambda loss: torch.autograd.backward(loss, grad_tensors=torch.tensor(0.25)), 0.25),
        (with_its_own_hook, 0.25),
        (lambda loss: torch.autograd.backward([loss, loss / 4]), 1.25),
    ],
)
def test_the_coefficient_of_a_loss_that_backward_is_called_on(backward, coefficient):
    with audit() as report:
        backward(mean(net()(torch.randn(4, 3)), torch.tensor([0, 1, 0, 1])))
    assert {term.coefficient for term in report.history.calls[0].terms} == {coefficient}


# Loops that are hard to see through


def test_the_audit_keeps_no_model_alive():
    with audit():
        model, optimizer = with_sgd()
        dead = weakref.ref(model), weakref.ref(optimizer), weakref.ref(model.weight)
        F.cross_entropy(model(torch.randn(4, 3)), torch.randint(2, (4,))).backward()
        update(optimizer)
        del model, optimizer
        gc.collect()
        train()
        assert [thing() for thing in dead] == [None] * 3


def test_a_long_run_is_kept_in_part(monkeypatch):
    monkeypatch.setattr(Kept, "half", 10)
    with audit() as report:
        train(n=2, divide=False, count=200)
    history = report.history
    assert (len(history.updates), history.updates_made, len(history.calls)) == (20, 100, 20)
    assert [update.number for update in history.updates] == [*range(1, 11), *range(91, 101)]
    assert "100 updates, windows of 2" in report.summary()
    assert "first and the last 10 updates" in report.summary()
    assert report.rules == ["loss-scale"]
    with audit() as report:
        train(n=1, zero=False, count=100)
    assert report.findings[0].evidence["update"] == 2


def in_threads(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_where_trainings_overlap_nothing_is_certain():
    barrier = threading.Barrier(2, timeout=10)

    class Meet(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, gradient):
            barrier.wait()
            return gradient

    def one():
        model, optimizer = with_sgd()
        for x, y in data(3):
            Meet.apply(F.cross_entropy(model(x), y)).backward()
            optimizer.step()

    with pytest.warns(match="another thread ran during a backward call"), record(), audit() as report:
        in_threads(one, one)
    assert report.errors == []
    assert "threads overlapped" in str(report)


class Own(SGD):
    """Inherits its step."""


@pytest.mark.parametrize("kind", [SGD, Own, torch.optim.LBFGS])
def test_an_optimizer_from_before_is_found_wherever_it_is_kept(kind):
    model = net()

    def keep(thing):
        return lambda: thing

    kept = keep(kind(model.parameters(), lr=0.1))  # in a closure alone
    with audit() as report:
        for x, y in data(2):
            F.cross_entropy(model(x), y).backward()
    assert [each.name for each in report.history.ledgers if each.left_over] == [kind.__name__]
    assert kept() is not None
