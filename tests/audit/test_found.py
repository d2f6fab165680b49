"""What an audit finds without a long search: optimizers and layers from before it, layers made inside it, leaves."""

import copy
import gc
import io

import pytest
import torch
from runs import data, net, train, update
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from gradaudit import audit
from gradaudit.forwards import leaves
from gradaudit.observe.observer import living


def with_batchnorm(layer=nn.BatchNorm1d):
    return nn.Sequential(nn.Linear(3, 4), layer(4), nn.Linear(4, 2))


def train_windows_of_two(model, updates=3):
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(updates):
        for x, y in data(2):
            (F.cross_entropy(model(x), y) / 2).backward()
        update(optimizer)


def moves(report):
    return [f.evidence["moves_per_update"] for f in report.findings if f.rule == "batchnorm"]


class OwnBatchNorm(nn.BatchNorm1d):
    pass


class NoBatchNorm(nn.BatchNorm1d):
    """Keeps no count of its batches."""

    def __init__(self, features):
        super().__init__(features, track_running_stats=False)


def unpickled(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def loaded(model):
    model.load_state_dict(with_batchnorm().state_dict())
    return model


def cast_there_and_back(model):
    return model.double().float()


MODELS = {
    "plain": (with_batchnorm, [2]),
    "own class": (lambda: with_batchnorm(OwnBatchNorm), [2]),
    "lazy": (lambda: with_batchnorm(lambda features: nn.LazyBatchNorm1d()), [2]),
    "checkpoint": (lambda: loaded(with_batchnorm()), [2]),
    "cast": (lambda: cast_there_and_back(with_batchnorm()), [2]),
    "deepcopy": (lambda: copy.deepcopy(with_batchnorm()), [2]),
    "unpickled": (lambda: unpickled(with_batchnorm()), [2]),
    "eval": (lambda: with_batchnorm().eval(), []),
    "without statistics": (lambda: with_batchnorm(NoBatchNorm), []),
    "none": (net, []),
}


@pytest.mark.parametrize("inside", [True, False], ids=["made inside", "from before"])
@pytest.mark.parametrize("name", MODELS)
def test_batchnorm_layers_are_found_however_they_were_made(name, inside):
    make, expected = MODELS[name]
    model = None if inside else make()
    with audit() as report:
        train_windows_of_two(model or make())
    assert moves(report) == expected


def test_a_copy_of_a_layer_from_before_is_found_although_no_init_runs():
    model = with_batchnorm()
    with audit() as report:
        train_windows_of_two(copy.deepcopy(model))
    assert moves(report) == [2]


def test_a_checkpoint_that_is_loaded_before_the_first_update_is_no_move():
    with audit() as report:
        train_windows_of_two(loaded(loaded(with_batchnorm())).eval())
    assert moves(report) == []


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
    assert list(report.history.leftover) == [kind.__name__]
    assert kept() is not None
    assert strange is not None


def test_living_are_those_of_the_class_and_of_its_subclasses():
    things = [with_batchnorm(), with_batchnorm(OwnBatchNorm)]
    found = living(nn.BatchNorm1d)
    assert {id(thing) for thing in found} == {id(thing[1]) for thing in things}
    del things, found
    assert living(nn.BatchNorm1d) == []


def test_the_leaves_of_a_backward_call_are_those_that_get_gradients():
    used, shared, frozen, detached = (nn.Parameter(torch.ones(2)) for _ in range(4))
    frozen.requires_grad_(False)
    roots = [(used * shared * frozen).sum() + detached.detach().sum(), shared.exp().sum()]
    found = leaves(roots)
    assert {id(p) for p in found} == {id(used), id(shared)}
    assert len(found) == 2
    torch.autograd.backward(roots)
    assert [p.grad is None for p in (used, shared, frozen, detached)] == [False, False, True, True]
    assert leaves([torch.ones(())]) == []
