"""The gradient of one window, for loops of one's own; and what a window cannot be made of."""

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from course_utils import mlp, windows
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


def test_the_loss_of_many_micro_batches_is_not_summed_in_16_bits():
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    nn.init.ones_(model.weight)
    window = [torch.ones(1, 1, dtype=torch.bfloat16)] * 1024
    assert backward_window(model, window, lambda model, x: model(x).mean()).item() == 1.0
    assert backward_window(model, [], lambda model, x: model(x).mean()) is None


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
