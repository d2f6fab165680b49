"""count_operations counts calls by name, also those of a backward pass."""

import torch
from torch import nn

from course_utils.observe import count_operations


def test_a_backward_pass_adds_once_per_parameter_that_has_a_gradient():
    layer = nn.Linear(3, 2)
    layer(torch.ones(1, 3)).sum().backward()
    loss = layer(torch.ones(1, 3)).sum()
    with count_operations() as counts:
        loss.backward()
    assert counts["add_"] == 2


def test_a_foreach_operation_is_one_call():
    tensors = [torch.ones(2), torch.ones(3)]
    with count_operations() as counts:
        torch._foreach_zero_(tensors)
    assert counts["_foreach_zero_"] == 1
    assert not any(tensor.any() for tensor in tensors)


def test_what_runs_outside_the_block_is_not_counted():
    with count_operations() as counts:
        pass
    torch.zeros(2)
    assert not counts
