"""What the loops can't use is an error that says what to do, before anything changes."""

import copy
import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from reference import mse
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau
from torch.utils.data import DataLoader

from course_utils import MicroBatchFinder, backward_window, evaluate, mlp, train_epoch, windows


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@contextmanager
def once():
    yield


@pytest.fixture
def model():
    torch.set_default_dtype(torch.float64)
    return mlp(3, 5, 2).eval()


@pytest.fixture
def batches(model):
    return [(torch.randn(size, 3), torch.randn(size, 2)) for size in (4, 2, 1, 3)]


@contextmanager
def refused(model, error, saying):
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=saying):
        yield
    assert not model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all((p.grad == 7).all() for p in model.parameters())


SCALAR = r"loss_fn must return a scalar tensor"


@pytest.mark.parametrize(
    ("of_window", "error", "saying"),
    [
        ({"weight": "4"}, TypeError, r"weight must be a function of one batch, got '4' \(str\)"),
        ({"weight": lambda batch: "4"}, TypeError, r"weight\(batch\) must be a number, got '4' \(str\)"),
        ({"weight": lambda batch: [4] * len(batch[0])}, ValueError, r"equally many counts .*, got \[1, 2, 3, 4\]"),
        ({"weight": lambda batch: ()}, ValueError, r"equally many counts .*, got \[0\]"),
        ({"weight": lambda batch: torch.ones(2)}, TypeError, r"got a Tensor of shape \(2,\)$"),
        ({"weight": lambda batch: 1e308}, ValueError, "a finite sum, got inf"),
        ({"weight": lambda batch: torch.tensor(math.nan)}, ValueError, "0 or more, got nan"),
        ({"weight": lambda batch: 2 - len(batch[0])}, ValueError, "a number of items or tokens, 0 or more, got -2"),
        ({"autocast": torch.bfloat16}, TypeError, r"autocast must be .*, got torch.bfloat16 \(dtype\)"),
        ({"autocast": once()}, TypeError, "can be entered for every micro-batch"),
        ({"scaler": 1024.0}, TypeError, r"scaler must be a GradScaler, got 1024.0 \(float\)"),
    ],
)
def test_what_a_window_cannot_use(model, batches, of_window, error, saying):
    with refused(model, error, saying):
        backward_window(model, batches, mse, **of_window)
    with refused(model, error, saying):
        train_epoch(model, batches, mse, sgd(model), 4, **of_window)


@pytest.mark.parametrize(
    ("spoil", "error", "saying"),
    [
        (lambda loss: loss.item(), TypeError, rf"{SCALAR}, got .* \(float\)"),
        (lambda loss: (loss, loss), TypeError, r"one mean loss for each count of weight\(batch\), got 2 for 1"),
        (lambda loss: {"logits": loss}, TypeError, "got dict$"),
        (lambda loss: {"loss": loss}, TypeError, r'got dict: return its \["loss"\]$'),
        (lambda loss: SimpleNamespace(loss=loss, logits=1), TypeError, r"got SimpleNamespace: return its \.loss$"),
        (lambda loss: loss.expand(2), ValueError, rf"{SCALAR} with a graph, got one of shape \(2,\)"),
        (lambda loss: loss.detach(), ValueError, "requires_grad=False"),
    ],
)
def test_a_loss_that_cannot_be_used(model, batches, spoil, error, saying):
    with refused(model, error, saying):
        backward_window(model, batches, lambda model, batch: spoil(mse(model, batch)))


@pytest.mark.parametrize(
    ("of_epoch", "error", "saying"),
    [
        ({"max_norm": 0}, ValueError, "max_norm must be a positive number, got 0"),
        ({"max_norm": math.nan}, ValueError, "got nan"),
        ({"max_norm": True}, TypeError, r"max_norm must be a number, got True \(bool\)"),
        ({"scheduler": "cosine"}, TypeError, r"scheduler must be an LRScheduler itself, got 'cosine' \(str\)"),
        ({"on_update": 1}, TypeError, "on_update must be a function"),
        ({"n": 0}, ValueError, "n must be at least 1, got 0"),
        ({"n": 2.5}, TypeError, r"n must be a whole number, got 2.5 \(float\)"),
        ({"n": True}, TypeError, r"got True \(bool\)"),
    ],
)
def test_an_option_that_an_epoch_cannot_use(model, batches, of_epoch, error, saying):
    with refused(model, error, saying):
        train_epoch(model, batches, mse, sgd(model), **of_epoch)
    if "n" in of_epoch:
        with pytest.raises(error, match=saying):
            windows(batches, of_epoch["n"])  # at the call


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (2.5, TypeError)])
def test_a_micro_batch_to_begin_with_that_is_no_number_of_samples(size, error):
    with pytest.raises(error, match=rf"micro_batch must be .*, got {size}"):
        MicroBatchFinder(micro_batch=size)


class SAM(torch.optim.SGD):
    def first_step(self):
        pass

    def step(self, closure=None):
        assert closure


def test_a_schedule_that_needs_a_metric_or_belongs_to_another_optimizer(model, batches):
    optimizer, other = sgd(model), ExponentialLR(sgd(model), 0.5)
    with refused(model, TypeError, r"got ReduceLROnPlateau; .* after evaluate\(\)"):
        train_epoch(model, batches, mse, optimizer, scheduler=ReduceLROnPlateau(optimizer))
    with refused(model, ValueError, "belongs to another optimizer"):
        train_epoch(model, batches, mse, optimizer, scheduler=other)
    assert other.get_last_lr() == [0.1]


@pytest.mark.parametrize(
    ("optimizer", "error", "saying"),
    [
        (lambda model: torch.optim.LBFGS(model.parameters()), TypeError, r"LBFGS: write a loop with backward_window"),
        (lambda model: SAM(model.parameters()), TypeError, r"SAM: write a loop with backward_window"),
        (lambda model: "SGD", TypeError, "steps without a closure, got str"),
        (lambda model: sgd(mlp(3, 2)), ValueError, "none of the optimizer's parameters belongs to the model"),
    ],
)
def test_an_optimizer_that_cannot_be_used(model, batches, optimizer, error, saying):
    with refused(model, error, saying):
        train_epoch(model, batches, mse, optimizer(model))


def test_batches_that_are_none_or_give_nothing(model, batches):
    used_up = (batch for batch in batches)
    assert len(list(used_up)) == len(batches)
    nothing, zero = "batches gave nothing: an empty loader", r"weight\(batch\) 0 for every micro-batch"
    for given, weight, error, saying in (
        (None, {}, TypeError, "'NoneType' object is not iterable"),
        ([], {}, ValueError, nothing),
        (DataLoader([]), {}, ValueError, nothing),
        (used_up, {}, ValueError, nothing),
        (batches, {"weight": lambda batch: 0}, ValueError, zero),
    ):
        with refused(model, error, saying):
            train_epoch(model, given, mse, sgd(model), 2, **weight)
        with refused(model, error, saying):
            evaluate(model, given, mse, **weight)
