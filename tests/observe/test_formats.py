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
    assert formats.pop("bytes per weight") == "12"
    assert formats.pop("main_grad") == "-"
    assert set(formats.values()) == {"float32"}


def test_a_copy_is_stepped_and_a_buffer_holds_the_sum():
    layer = nn.Linear(3, 2, bias=False).bfloat16()
    copy = layer.weight.detach().float()
    layer.weight.main_grad = torch.zeros_like(copy)
    other = torch.zeros(5, dtype=torch.float64)
    with formats_of(layer.weight, torch.optim.SGD([other, copy], lr=0.1)) as formats:
        pass
    assert list(formats.values()) == ["bfloat16", "-", "-", "float32", "float32", "-", "10"]


def test_what_an_optimizer_keeps_for_all_weights_together_is_not_in_the_format_of_one():
    layer = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.LBFGS(layer.parameters())

    def closure():
        optimizer.zero_grad()
        loss = layer(torch.ones(1, 3)).square().sum()
        loss.backward()
        return loss

    with formats_of(layer.weight, optimizer) as formats:
        optimizer.step(closure)
    assert any(isinstance(held, torch.Tensor) for held in optimizer.state[layer.weight].values())
    assert (formats["optimizer's state"], formats["bytes per weight"]) == ("-", "8")
