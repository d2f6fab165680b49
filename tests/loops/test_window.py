"""The gradient of one window, for loops of one's own; and what a window cannot be made of."""

import math
import tracemalloc
from array import array
from collections import UserDict, deque
from dataclasses import dataclass
from threading import Lock

import numpy as np
import pytest
import torch
from PIL import Image
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


@dataclass
class Fields:
    x: object
    rest: object = None


@dataclass(slots=True)
class Slots:
    x: object

    def __call__(self):  # as the graphs of PyTorch Geometric have it
        return self.x


def filled_again(batch, fill):
    """Hands out one object, each time with something else in it."""
    for k in range(3):
        fill(batch, k)
        yield batch


def numpy_buffer(view):
    buffer = np.zeros((4, 3))
    for k in range(3):
        buffer[:] = k
        yield view(buffer)


def one_ahead():
    """Fills the next of two buffers before it hands out this one."""
    buffers = [torch.zeros(2), torch.zeros(2)]
    for k in range(4):
        buffers[(k + 1) % 2].fill_(k + 1)
        yield buffers[k % 2]


REUSED = {
    "a tensor": lambda: from_buffers(1),
    "in a tuple": lambda: from_buffers(1, lambda x: (x, 1)),
    "in a list in a dict": lambda: from_buffers(1, lambda x: {"x": [x]}),
    "a view": lambda: from_buffers(1, lambda x: x[:2]),
    "in slots": lambda: from_buffers(1, Slots),
    "in an object in an object": lambda: from_buffers(1, lambda x: [Fields(1, {"boxes": Fields(x)})]),
    "in a cycle": lambda: from_buffers(1, lambda x: (batch := Fields(x), setattr(batch, "rest", batch))[0]),
    "slots": lambda: filled_again(Slots(0), lambda batch, k: setattr(batch, "x", torch.ones(2) * k)),
    "a mapping that is no dict": lambda: filled_again(UserDict(), lambda batch, k: batch.update(x=torch.ones(2) * k)),
    "a list of numbers": lambda: filled_again([0], lambda batch, k: batch.__setitem__(0, 1000 + k)),
    "a deque": lambda: filled_again(deque(maxlen=2), lambda batch, k: batch.append(torch.ones(2) * k)),
    "a view of an array": lambda: numpy_buffer(lambda x: {"x": x.T[:2]}),
    "a tensor on an array, in a dataclass": lambda: numpy_buffer(lambda x: Fields(torch.from_numpy(x)[1:])),
    "an array on a tensor": lambda: filled_again(torch.zeros(2), lambda batch, k: batch.numpy().fill(k)),
    "an array of Python's": lambda: filled_again(array("f", [0]), lambda batch, k: batch.__setitem__(0, k)),
    "a tensor in an object with a lock": lambda: from_buffers(1, lambda x: Fields(Lock(), x)),
    "an image": lambda: filled_again(Image.new("L", (2, 2)), lambda batch, k: batch.putpixel((0, 0), k)),
    "a buffer that is filled too early": one_ahead,
}


def test_comparing_batches_keeps_no_copy_of_them():
    batches = iter([np.zeros(1_000_000) for _ in range(4)])
    tracemalloc.start()
    next(windows(batches, 4))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * 8_000_000  # pickle writes one array at a time


@pytest.mark.parametrize("kind", REUSED)
def test_whatever_is_overwritten_in_its_window_is_an_error(kind):
    assert list(windows(REUSED[kind](), 1))  # one at a time is used before the next comes
    with pytest.raises(ValueError, match=r"the loader reuses its buffers.*\.clone\(\)"):
        list(windows(REUSED[kind](), 2))


def slices_of_one_ring():
    ring = torch.zeros(6, 3)
    for k in range(6):
        yield ring[k : k + 1].fill_(k)  # one storage and one version, six places


class Converts(Fields):
    """Copies its tensor whenever it is pickled."""

    def __getstate__(self):
        return {"x": self.x.clone()}


class Lazy(UserDict):
    """Makes its values when they are read."""

    def __getitem__(self, key):
        return torch.ones(2)


def inference_tensors():
    with torch.inference_mode():
        return [torch.zeros(2, 3), torch.ones(2, 3)]


@pytest.mark.parametrize(
    ("batches", "n"),
    [
        (from_buffers(1), 1),
        (from_buffers(2), 2),
        ([torch.zeros(2, 3)] * 4, 4),
        (slices_of_one_ring(), 6),
        (inference_tensors(), 2),
        ([torch.from_numpy(np.full((4, 3), math.nan))[:2] for _ in range(2)] * 2, 4),
        ([np.zeros(3), np.zeros(3)] * 2, 4),
        ([{"x": torch.ones(2)}, Fields(torch.ones(2), range(10**9))] * 2, 4),
        ([Lazy(x=0)] * 2, 2),
        ([Converts(torch.ones(2)), Converts(torch.ones(2))], 2),
        (numpy_buffer(torch.tensor), 3),
    ],
)
def test_what_keeps_its_batches_is_none(batches, n):
    assert list(windows(batches, n))
