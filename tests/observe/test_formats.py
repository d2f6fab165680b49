"""The formats of a weight's tensors."""

import torch
from torch import nn

from course_utils import formats_of


def test_under_autocast_only_what_is_saved_is_bfloat16():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with formats_of(model[1].weight, optimizer) as formats:
        hidden = model[0](torch.ones(4, 3))
        with torch.autocast("cpu", torch.bfloat16):
            loss = model[1](hidden).sum()
        loss.backward()
        assert not formats
        optimizer.step()
    assert formats.pop("saved for backward") == "bfloat16"
    assert set(formats.values()) == {"float32"}


def test_what_is_not_there_is_a_dash():
    layer = nn.Linear(3, 2, bias=False).bfloat16()
    with formats_of(layer.weight, torch.optim.SGD(layer.parameters(), lr=0.1)) as formats:
        pass
    assert list(formats.values()) == ["bfloat16", "-", "-", "-"]
