"""held_bytes notes what a loop holds, event by event; allocated the allocator's peak."""

import pytest
import torch

from course_utils import held_bytes, mlp
from course_utils.memory import allocated, resident_bytes

BYTES = 4  # of a float32
ONE_SET = (6 * 5 + 5 + 5 * 4 + 4) * BYTES
LARGEST = 6 * 5 * BYTES
ONE_FORWARD = 3 * (6 + 5) * BYTES


def backward(model):
    model(torch.ones(3, 6)).sum().backward()


def test_a_first_gradient_becomes_grad_and_a_later_one_stands_beside_it():
    model = mlp(6, 5, 4)
    with held_bytes(model) as held:
        backward(model)
    assert held.most("gradients", "arriving") == ONE_SET
    with held_bytes(model) as held:
        backward(model)
    assert held.most("gradients", "arriving") == ONE_SET + LARGEST
    assert held.most("gradients", "activations") == ONE_SET + ONE_FORWARD
    assert held.activations[-1] == 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_watching_ends_with_the_block_however_it_ends(error):
    model = mlp(6, 5, 4)
    with pytest.raises(error), held_bytes(model) as held:
        raise error
    events = len(held.gradients)
    backward(model)
    assert len(held.gradients) == events


def test_what_stays_between_updates():
    model = mlp(6, 5, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    assert resident_bytes(model, optimizer) == {"weights": ONE_SET, "gradients": 0, "optimizer state": 0}
    backward(model)
    optimizer.step()
    counters = 4 * BYTES  # Adam counts its steps, for each parameter
    found = resident_bytes(model, optimizer)
    assert found == {"weights": ONE_SET, "gradients": ONE_SET, "optimizer state": 2 * ONE_SET + counters}


def test_the_allocators_peak_counts_what_exists_at_once():
    with allocated() as memory:
        x = torch.zeros(1000)
        y = torch.zeros(500)
        del x
        z = torch.zeros(900)
    assert memory.peak == 4 * 1500
    assert len(y) + len(z) == 1400
