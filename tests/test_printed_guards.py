"""The course's loops for mixed precision: a window with a NaN or overflow leaves no trace."""

from contextlib import nullcontext
from functools import cache
from math import inf, nan
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cheatsheet
from course_utils import windows
from project.scripts import HANDED, solved
from solutions import solution


@cache
def function(source, name):
    names = {"__name__": "printed", "torch": torch, "nn": nn, "F": F, "windows": windows, "device": torch.device("cpu")}
    exec(source, names)
    return names[name]


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def of_the_sheet(model, batches, optimizer, scaler, schedule):
    exec(cheatsheet.loop(), {
        "GradScaler": lambda **_: scaler, "is_float16": None, "optimizer": optimizer, "windows": windows, "n": 2,
        "batches": batches, "weight": len, "model": model, "autocast": nullcontext(), "loss_fn": loss_fn,
        "clip_grad_norm_": nn.utils.clip_grad_norm_, "max_norm": inf, "scheduler": schedule,
    })  # fmt: skip


def of_the_notebook(model, batches, optimizer, scaler, schedule):
    autocast = torch.autocast("cpu", dtype=torch.float16)
    solution("amp_window")(model, batches, loss_fn, optimizer, 2, len, inf, schedule, autocast, scaler)


def of_a_script(source):
    def loop(model, batches, optimizer, scaler, schedule):
        options = SimpleNamespace(precision="float32", window=2, clip=inf, save_every=100, log=None)
        function(source, "train_epoch")(model, batches, optimizer, scaler, schedule, options, 0, print)

    return loop


LOOPS = {
    "cheat sheet": of_the_sheet,
    "09": of_the_notebook,
    "script": of_a_script(HANDED),
    "solution": of_a_script(solved()),
}


def trained(loop, batches, enabled, **options):
    """The weights, and how often the scheduler was stepped."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, **options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    loop(model, batches, optimizer, torch.amp.GradScaler("cpu", enabled=enabled), schedule)
    return nn.utils.parameters_to_vector(model.parameters()).detach(), schedule.last_epoch


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("factor", [nan, 1e36], ids=["NaN", "overflow"])
@pytest.mark.parametrize("enabled", [True, False], ids=["scaler", "scaler off"])
@pytest.mark.parametrize("options", [{}, {"foreach": True, "momentum": 0.5}, {"fused": True, "momentum": 0.5}],
                         ids=["default", "foreach", "fused"])  # fmt: skip
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_window_that_must_not_count_leaves_no_trace(loop, options, enabled, factor, window):
    torch.manual_seed(1)
    batches = [(torch.randn(2, 4, 3), torch.randint(2, (2, 4))) for _ in range(6)]
    poisoned = [(x * factor if number == 2 * window else x, y) for number, (x, y) in enumerate(batches)]
    without = batches[: 2 * window] + batches[2 * window + 2 :]
    torch.use_deterministic_algorithms(True)  # fills fresh memory with NaN, so that a step which reads it shows
    try:
        weights, steps = trained(loop, poisoned, enabled, **options)
        wanted, _ = trained(loop, without, enabled, **options)
    finally:
        torch.use_deterministic_algorithms(False)
    assert weights.isfinite().all()
    assert torch.equal(weights, wanted)
    assert steps == 2
