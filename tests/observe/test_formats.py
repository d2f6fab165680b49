"""The formats of a weight's tensors."""

import torch
from torch import nn

from course_utils import formats_of


def test_under_autocast_only_what_is_saved_is_bfloat16():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with formats_of(model[1].weight, optimizer) as formats:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.ones(4, 3)).sum()
        loss.backward()
        assert not formats
        optimizer.step()
    assert formats.pop("saved for backward") == "bfloat16"
    assert formats.pop("bytes per weight") == "12"
    assert formats.pop("main_grad") == "-"
    assert set(formats.values()) == {"float32"}


def test_a_copy_is_stepped_and_a_buffer_holds_the_sum():
    layer = nn.Linear(3, 2, bias=False).bfloat16()
    copy = layer.weight.detach().float()
    layer.weight.main_grad = torch.zeros_like(copy)
    with formats_of(layer.weight, torch.optim.SGD([copy], lr=0.1)) as formats:
        pass
    assert list(formats.values()) == ["bfloat16", "-", "-", "float32", "float32", "-", "10"]
