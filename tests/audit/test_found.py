"""What an audit finds without a long search: optimizers from before it, and leaves."""

import gc

import pytest
import torch
from runs import data, net, train
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from gradaudit import audit
from gradaudit.watch.graphs import leaves


def test_one_walk_over_the_heap_for_each_audit(monkeypatch):
    walks = []
    for name in ("get_objects", "get_referrers"):
        original = getattr(gc, name)
        monkeypatch.setattr(gc, name, lambda *args, name=name, original=original: walks.append(name) or original(*args))
    with audit():
        train()
        train()
    assert walks == ["get_referrers"]


class Own(SGD):
    """Inherits its step."""


class Strange(type):
    """A class of objects that must not be asked anything."""

    def __eq__(cls, other):
        raise AssertionError("this class was compared")

    __hash__ = None


@pytest.mark.parametrize("kind", [SGD, Own, torch.optim.LBFGS])
def test_an_optimizer_from_before_is_found_wherever_it_is_kept(kind):
    model = net()

    def keep(thing):
        return lambda: thing

    kept = keep(kind(model.parameters(), lr=0.1))  # in a closure alone
    strange = Strange("Strange", (), {})()
    strange.kind = kind
    with audit() as report:
        for x, y in data(2):
            F.cross_entropy(model(x), y).backward()
    assert [each.name for each in report.history.records if each.left_over] == [kind.__name__]
    assert kept() is not None
    assert strange is not None


def test_the_leaves_of_a_backward_call_are_those_that_get_gradients():
    used, shared, frozen, detached = (nn.Parameter(torch.ones(2)) for _ in range(4))
    frozen.requires_grad_(False)
    roots = [(used * shared * frozen).sum() + detached.detach().sum(), shared.exp().sum()]
    found, _ = leaves(roots)
    assert {id(p) for p in found} == {id(used), id(shared)}
    assert len(found) == 2
    torch.autograd.backward(roots)
    assert [p.grad is None for p in (used, shared, frozen, detached)] == [False, False, True, True]
    assert leaves([torch.ones(())]) == ([], False)
