"""The gradient of one window, for loops of one's own; and what a window cannot be made of."""

import pytest
import torch
from torch import nn

from course_utils import windows
from course_utils.loops import backward_window


def test_the_loss_of_many_micro_batches_is_not_summed_in_16_bits():
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    nn.init.ones_(model.weight)
    window = [torch.ones(1, 1, dtype=torch.bfloat16)] * 1024
    assert backward_window(model, window, lambda model, x: model(x).mean()).item() == 1.0
    assert backward_window(model, [], lambda model, x: model(x).mean()) is None


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
