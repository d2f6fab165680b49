"""Loops that are hard to see through."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import get_total_norm
from torch.optim import SGD

from course_utils import record
from gradaudit import audit
from gradaudit.observe.ledger import Kept
from runs import data, net, scaled_steps, train, update, with_sgd


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


def test_where_trainings_overlap_nothing_is_certain():
    barrier, pool = threading.Barrier(2, timeout=10), ThreadPoolExecutor(2)

    class Meet(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, gradient):
            barrier.wait()
            return gradient

    def one(_):
        model, optimizer = with_sgd()
        for x, y in data(3):
            Meet.apply(F.cross_entropy(model(x), y)).backward()
            optimizer.step()

    with pytest.warns(match="another thread ran during a backward call"), record(), audit() as report, pool:
        list(pool.map(one, range(2)))
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


@pytest.mark.parametrize("each_micro_batch", [True, False])
def test_a_clip_by_a_norm_that_was_measured_before_is_seen_as_torchtitan_calls_it(each_micro_batch):
    model, optimizer = with_sgd()
    with audit() as report:
        for number, (x, y) in enumerate(data(), start=1):
            (F.cross_entropy(model(x), y) / 4).backward()
            if each_micro_batch or number % 4 == 0:
                norm = get_total_norm(p.grad for p in model.parameters())
                nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, norm)
            if number % 4 == 0:
                update(optimizer)
    assert report.rules == ["clip-timing"] * each_micro_batch


def test_a_scalers_update_without_a_step_before_it_is_named_as_what_ended_the_script():
    with pytest.raises(AssertionError, match="No inf checks"), audit() as report:
        scaled_steps(n=4, before_the_step=lambda model, optimizer, scaler: scaler.update())
    assert report.rules == ["scaler-timing"]
    assert "update() came without a step() or an unscale_() before it" in str(report).replace("\n  ", " ")
