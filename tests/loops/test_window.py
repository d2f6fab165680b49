"""The gradient of one window, for loops of one's own; and what a window cannot be made of."""

import math
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from course_utils import mlp, train_epoch, windows
from course_utils.loops import backward_window

RAGGED = (4, 2, 1, 3)


def mse(model, batch):
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


@pytest.fixture
def model():
    torch.set_default_dtype(torch.float64)
    return mlp(3, 5, 2)


@pytest.fixture
def window(model):
    return [(torch.randn(size, 3), torch.randn(size, 2)) for size in RAGGED]


def large_gradient(model, window):
    loss = mse(model, tuple(map(torch.cat, zip(*window, strict=True))))
    return loss.detach(), torch.autograd.grad(loss, list(model.parameters()))


def assert_near(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


# backward_window


def test_the_loss_of_many_micro_batches_is_not_summed_in_16_bits():
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    nn.init.ones_(model.weight)
    window = [torch.ones(1, 1, dtype=torch.bfloat16)] * 1024
    assert backward_window(model, window, lambda model, x: model(x).mean()).item() == 1.0


def test_it_adds_to_what_is_there_and_changes_neither_weights_nor_mode(model, window):
    _, gradient = large_gradient(model, window)
    model.eval()
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    backward_window(model, iter(window), mse)
    assert_near([p.grad for p in model.parameters()], [1 + g for g in gradient])
    assert all(map(torch.equal, before, model.parameters()))
    assert not model.training


def test_a_scaler_multiplies_the_gradient_and_not_the_loss_and_has_not_unscaled(model, window):
    expected, gradient = large_gradient(model, window)
    scaler = GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert_near([backward_window(model, window, mse, scaler=scaler)], [expected])
    assert_near([p.grad / 1024 for p in model.parameters()], gradient)
    scaler.unscale_(optimizer)  # it would refuse if it had been called before
    assert_near([p.grad for p in model.parameters()], gradient)


# Losses, weights and contexts that cannot be used, here and in train_epoch


def by_window(model, window, loss_fn=mse, **options):
    backward_window(model, window, loss_fn, **options)


def by_epoch(model, window, loss_fn=mse, **options):
    train_epoch(model, window, loss_fn, torch.optim.SGD(model.parameters(), lr=0.1), n=len(window), **options)


both = pytest.mark.parametrize("run", [by_window, by_epoch])


@both
@pytest.mark.parametrize(
    ("spoil", "error", "saying"),
    [
        (lambda loss: loss.item(), TypeError, r"loss_fn must return a scalar tensor, got .* \(float\)"),
        (lambda loss: None, TypeError, r"got None \(NoneType\)"),
        (lambda loss: (loss, loss), TypeError, r"\(tuple\)"),
        (lambda loss: {"loss": loss}, TypeError, r"\(dict\)"),
        (lambda loss: loss.expand(2), ValueError, r"scalar tensor with a graph, got one of shape \(2,\)"),
        (lambda loss: loss.detach(), ValueError, "requires_grad=False"),
    ],
)
def test_a_loss_that_cannot_be_used_is_an_error_before_any_gradient(model, window, run, spoil, error, saying):
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(error, match=saying):
        run(model, window, lambda model, batch: spoil(mse(model, batch)))
    assert all(map(torch.equal, before, model.parameters()))
    assert [p.grad for p in model.parameters()] == [None] * 4


@both
@pytest.mark.parametrize(
    ("weight", "error", "saying"),
    [
        ("4", TypeError, r"weight must be a function of one batch, got '4' \(str\)"),
        (lambda batch: "4", TypeError, r"weight\(batch\) must be a number, got '4' \(str\)"),
        (lambda batch: None, TypeError, r"got None \(NoneType\)"),
        (lambda batch: torch.ones(2), TypeError, r"got tensor\(\[1., 1.\]\) \(Tensor\)"),
        (lambda batch: 1e308, ValueError, "a finite sum, got inf"),
        (lambda batch: torch.tensor(math.nan), ValueError, "0 or more, got nan"),
        (lambda batch: float("inf"), ValueError, "0 or more, got inf"),
    ],
)
def test_a_weight_that_cannot_be_used_is_an_error_before_anything_changes(model, window, run, weight, error, saying):
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(error, match=saying):
        run(model, window, weight=weight)
    assert all(map(torch.equal, before, model.parameters()))
    assert all((p.grad == 7).all() for p in model.parameters())


@both
def test_a_context_that_can_be_entered_only_once_is_an_error_that_says_so(model, window, run):
    @contextmanager
    def once():
        yield

    with pytest.raises(TypeError, match="can be entered only once"):
        run(model, window, autocast=once())
    run(model, window, autocast=nullcontext())


# A loader that reuses its buffers


def from_buffers(number, view=lambda buffer: buffer):
    buffers = [torch.zeros(4, 3) for _ in range(number)]
    for k in range(6):
        yield view(buffers[k % number].fill_(k))


@pytest.mark.parametrize("as_batch", [lambda x: x, lambda x: (x, 1), lambda x: {"x": [x]}, lambda x: x[:2]])
@pytest.mark.parametrize(("number", "n"), [(1, 2), (2, 3), (2, 6)])
def test_a_loader_that_overwrites_a_batch_of_the_window_is_an_error(number, n, as_batch):
    with pytest.raises(ValueError, match=r"reuses its buffers.*\.clone\(\)"):
        list(windows(from_buffers(number, as_batch), n))


def slices_of_one_ring():
    ring = torch.zeros(6, 3)
    for k in range(6):
        yield ring[k : k + 1].fill_(k)  # one storage and one version, six places


def inference_tensors():
    with torch.inference_mode():
        return [torch.zeros(2, 3), torch.ones(2, 3)]


@pytest.mark.parametrize(
    ("batches", "n"),
    [
        (from_buffers(1), 1),
        (from_buffers(2), 2),
        ([torch.zeros(2, 3)] * 4, 4),
        (torch.zeros(8, 3).split(2), 4),
        (slices_of_one_ring(), 6),
        (inference_tensors(), 2),
        (from_buffers(1, lambda buffer: buffer.clone()), 6),
    ],
)
def test_what_keeps_its_batches_is_none(batches, n):
    assert list(windows(batches, n))
