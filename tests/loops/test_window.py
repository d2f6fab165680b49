"""The gradient of one window, for loops of one's own."""

import torch
from torch import nn

from course_utils.loops import backward_window


def test_the_loss_of_many_micro_batches_is_not_summed_in_16_bits():
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    nn.init.ones_(model.weight)
    window = [torch.ones(1, 1, dtype=torch.bfloat16)] * 1024
    assert backward_window(model, window, lambda model, x: model(x).mean()).item() == 1.0
    assert backward_window(model, [], lambda model, x: model(x).mean()) is None
