"""What the auditor says about sequences of windows: each is run as a real loop, over a list and over a `DataLoader`.

A run is a list of epochs, and an epoch is a list of what happens in it: `4` is four micro-batches and an update, `"+3"`
three micro-batches without one, `"z3"` three micro-batches that are zeroed. `by` is what each loss is divided by:
a number, or None for the size of its own window. The verdicts were written down before the first run.
"""

import pytest
import torch
from runs import net, update, with_sgd
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader, TensorDataset

from gradaudit import audit

RULES = {"irregular-window", "leftover-gradients", "discarded-gradients"}
LEVELS = {"error": "!", "undecided": "?"}


def run(epochs, by=None, loader=False, size=4):
    """Trains as the epochs say."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.01)
    pending = 0
    for epoch in epochs:
        counts = [abs(int(str(event).lstrip("z+"))) for event in epoch]
        batches = iter(source(sum(counts), size, loader))
        for event, count in zip(epoch, counts, strict=True):
            for _ in range(count):
                x, y = next(batches)
                (F.cross_entropy(model(x), y) / (by or pending + count)).backward()
            pending = pending + count if str(event).startswith("+") else 0
            if isinstance(event, int):
                optimizer.step()
            if not pending:
                optimizer.zero_grad()
        assert next(batches, None) is None  # the epoch ends as a loop over it does


def source(count, size, loader):
    x, y = torch.randn(count * size, 3), torch.randint(2, (count * size,))
    return DataLoader(TensorDataset(x, y), size) if loader else zip(x.split(size), y.split(size), strict=True)


def verdicts(report):
    """Such as "!irregular-window 3": an error that shows first in update 3."""
    said = [f for f in report.findings if f.rule in RULES]
    return [f"{LEVELS[f.level]}{f.rule} {f.evidence.get('update', '')}".strip() for f in said]


def from_both(names):
    """Each name over a list or a loader, in turns."""
    return pytest.mark.parametrize(("name", "loader"), [(name, k % 2 == 1) for k, name in enumerate(names)])


RAMP = [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]

RIGHT = {
    "all alike": ([[4] * 6], 4),
    "a tail in each epoch": ([[4, 4, 2]] * 3, None),
    "tails of different lengths": ([[4, 4, 2], [4, 4, 1], [4, 4, 4, 3], [4]], None),
    "one tail, at the end": ([[4, 4, 4, 1]], None),
    "a tail of one after windows of two": ([[2, 2, 1]] * 3, None),
    "a resumed run, whose first epoch is short": ([[4, 2], [4, 4, 2], [4, 4, 2]], None),
    "one window in an epoch": ([[4], [4], [4], [2]], None),
    "epochs shorter than a window": ([[2], [2], [2], [2]], None),
    "a ramp": ([RAMP], None),
    "a ramp divided by its end": ([RAMP], 4),
    "a ramp that multiplies by the batch": ([RAMP], 1 / 16),
    "a ramp without plateaus": ([[1, 2, 3, 4, 4, 4, 4]], None),
    "doubling": ([[1, 2, 4, 8, 8, 8]], 1),
    "a ramp from one to two": ([[1, 1, 1, 1, 2, 2, 2]], 1),
    "a ramp that is mostly at its start": ([[1] * 20 + [2] * 4 + [4] * 4], 1 / 16),
    "a ramp over epochs with tails": ([[1, 1, 2, 2, 2, 1], [3, 3, 3, 2], [4, 4, 4, 2], [4, 4, 4, 2]], None),
    "a larger window from the second epoch on": ([[2, 2, 2, 2], [4, 4, 4, 4]], None),
    "a larger window for a while": ([[2] * 6, [4] * 3, [2] * 6], None),
    "a larger window for a while, and undivided": ([[2] * 6, [4] * 3, [2] * 6], 1 / 8),
    "shrinking": ([[8, 8, 8], [4, 4, 4, 4], [2, 2, 2]], None),
    "shrinking to single steps": ([[4, 4, 4], [1] * 10], None),
    "as many tokens as fit, in every epoch": ([[3, 4, 5, 4, 1]] * 3, None),
    "tails that multiply by the batch": ([[4, 4, 2]] * 3, 1 / 16),
    "half the window from the second epoch on, times the batch": ([[8] * 5, [4] * 3], 1 / 16),
    "windows that go on over the epochs": ([[4, 4, "+2"], [2, 4, 4], [4, 4, "+2"], [2, 4, 4]], 4),
    "a ramp and once twice as many": ([[1, 1, 2, 2, 4, 4, 4, 8, 4, 4, 4]], None),
    "single steps and then a ramp": ([[1] * 12, [1, 2, 2], [3, 3, 4, 4, 4]], None),
}


@from_both(RIGHT)
def test_nothing_is_said_about_windows_that_are_meant(name, loader):
    epochs, by = RIGHT[name]
    with audit() as report:
        run(epochs, by, loader)
    assert verdicts(report) == []
    assert [f for f in report.errors if f.rule != "loss-scale" or by != 1] == []


WRONG = {  # where a loader tells more than a list, the second verdict is for the loader
    "the first update comes early": ([[1, 4, 4, 4]], 4, ["!irregular-window 1"]),
    "early, and not divided": ([[1, 8, 8, 8, 8]], 1, ["!irregular-window 1"]),
    "early in every epoch": ([[1, 4, 4]] * 3, 4, ["!irregular-window 1"]),
    "half a window, then a whole one": ([[2, 4]] * 3, 4, ["!irregular-window 1"]),
    "short at both ends of an epoch": ([[3, 4, 1]] * 3, 4, ["!irregular-window 1"]),
    "the first update comes late": ([[5, 4, 4, 4]], 4, ["!irregular-window 1"]),
    "late, and the last never comes": ([[5, 4, 4, 4, "+3"]], 4, ["!irregular-window 1", "!leftover-gradients"]),
    "late, with windows of one": ([[2, 1, 1, 1, 1, 1]], 1, ["!irregular-window 1"]),
    "late in every epoch": (
        [[5, 4, "+3"]] * 4,
        4,
        ["!irregular-window 1", "!leftover-gradients"],
        ["!irregular-window 1", "!leftover-gradients", "!leftover-gradients 3"],
    ),
    "a tail in the next epoch": ([[4, 4, "+3"]] * 2, 4, ["!leftover-gradients", "!leftover-gradients 3"]),
    "a tail in each next epoch": ([[4, 4, "+2"]] * 4, 4, ["!leftover-gradients", "!leftover-gradients 3"]),
    "fifteen instead of eight": ([[8] * 3 + ["+7"]] * 3, 8, ["!leftover-gradients", "!leftover-gradients 4"]),
    "a tail in the next epoch, not divided": ([[4, 4, "+3"]] * 3, 1, ["!leftover-gradients", "!leftover-gradients 3"]),
    "one update in an epoch": (
        [[4, "+3"]] * 4,
        4,
        ["!irregular-window 1", "!leftover-gradients"],
        ["!leftover-gradients", "!leftover-gradients 2"],
    ),
    "a single step left out at the end of an epoch": (
        [[1, 1, 1, "+1"], [1, 1, 1, 1]],
        1,
        ["!irregular-window 4"],
        ["!leftover-gradients 4"],
    ),
    "a step left out": ([[4, 4, 8, 4, 4, 4]], 4, ["!irregular-window 3"]),
    "a step left out in the second epoch": ([[4, 4, 4], [4, 8, 4], [4, 4]], 4, ["!irregular-window 5"]),
    "two steps left out": ([[4, 8, 4, 4, 8, 4, 4, 4]], 4, ["!irregular-window 2"]),
    "a step left out with its micro-batch": ([[4, 7, 4, 4, 4]], 4, ["!irregular-window 2"]),
    "one of many steps of one left out": ([[1, 1, 1, 2, 1, 1, 1, 1, 1]], 1, ["!irregular-window 4"]),
    "the condition turned round": ([[1, 1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 1]], 4, ["!irregular-window 4"]),
    "left out late": ([[4] * 30 + [8] + [4] * 10], 4, ["!irregular-window 31"]),
    "left out after a ramp, not divided": ([[1, 1, 2, 2, 4, 4, 4, 8, 4, 4, 4]], 1, ["!irregular-window 8"]),
    "left out before a smaller window": ([[8, 8, 16, 8, 8], [4, 4, 4, 4, 4, 4, 4]], 8, ["!irregular-window 3"]),
    "two conditions": ([[4, 4, 2, 2, 4, 4]] * 2, 4, ["!irregular-window 3"]),
    "the tail zeroed": ([[4, 4, "z2"]] * 3, 4, ["!discarded-gradients"]),
    "the tail zeroed on a ramp": ([[1] * 12 + [2, 2, "z1"], [2, 2, 2, "z1"]], 1, ["!discarded-gradients"]),
    "the tail zeroed, and the counter goes on": (
        [[1] * 9, [2, 2, 2, "z1"], [1, 2, 2, "z1"], [1, 2, 2]],
        1 / 16,
        ["!discarded-gradients"],
    ),
    "the tail zeroed as the window grows": ([[1] * 8, [2, 2, "z1"], [4, 4, "z2"]], None, ["!discarded-gradients"]),
    "the tail zeroed in each epoch of a short ramp": (
        [[1, 1, 2, 2, 3, "z1"], [3, 4, "z3"], [1, 4, 4]],
        1 / 16,
        ["!discarded-gradients"],
    ),
    "every second step left out": ([[4, 8, 4, 8, 4, 8]], 4, ["!irregular-window 1"]),
    "a part zeroed early": ([[4, 4, "z2", 4, 4, 4, 4, 4]], 4, ["!discarded-gradients"]),
    "the end never used": ([[4, 4, 4, "+2"]], 4, ["!leftover-gradients"]),
    "no number": ([[3, 1, 4, 2, 6, 5]], 4, []),
    "larger at the end": ([[4, 4, 4, 8]], 4, []),
    "larger at the end, from one": ([[1, 1, 1, 1, 2]], 1, []),
    "twice as large at first": ([[8, 4, 4, 4, 4]], 4, []),
    "whole windows zeroed": ([[4, 4, "z4", 4, 4, 4]], 4, ["?discarded-gradients"]),
    "whole windows zeroed on the way down and up": ([[4, 2, "z2", 2, 4]], None, ["?discarded-gradients"]),
    "a window zeroed in each half of an epoch": ([[2, "z2", 2, "z2", 2, "z2", 2, 2, 2]], 2, ["?discarded-gradients"]),
    "a window zeroed after most of the others": ([[2, "z2", 2, "z2", 2, 2]], 2, ["!discarded-gradients"]),
    "windows of two sizes zeroed": ([[4, 4, "z4", 4, 2, "z2", 2, 2]], None, ["?discarded-gradients"]),
    "cut in two": ([[4, 4, 4, 4, 3, 1, 4, 4, 4]], 4, []),
}


@from_both(WRONG)
def test_a_window_that_is_not_meant_is_named_with_its_update(name, loader):
    epochs, by, *expected = WRONG[name]
    with audit() as report:
        run(epochs, by, loader)
    assert sorted(verdicts(report)) == sorted(expected[-1 if loader else 0])


@pytest.mark.parametrize("zero", [False, True])
def test_a_first_window_that_began_before_the_audit_is_not_judged(zero):
    model, optimizer = with_sgd()

    def accumulate(count):
        for _ in range(count):
            (F.cross_entropy(model(torch.randn(4, 3)), torch.randint(2, (4,))) / 4).backward()

    accumulate(2)
    with audit() as report:
        if zero:
            optimizer.zero_grad()
        for count in (2, 4, 4, 4):
            accumulate(count)
            update(optimizer)
    assert verdicts(report) == (["!irregular-window 1"] if zero else [])


# The verdict depends neither on the optimizer nor on how gradients are zeroed


def run_with(how, sizes):
    """One update for each of `sizes`, and each loss divided by 4."""
    body, head = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2)
    model = nn.Sequential(body, head)
    if how == "one layer is frozen":
        body.requires_grad_(False)
    make = {
        "fused": lambda p: AdamW(p, fused=True),
        "foreach": lambda p: AdamW(p, foreach=True),
    }.get(how, lambda p: SGD(p, lr=0.1))
    optimizers = [make(body.parameters()), make(head.parameters())] if how == "two" else [make(model.parameters())]
    scaler = GradScaler("cpu", init_scale=4.0, enabled=how == "scaler")
    for place, size in enumerate(sizes):
        xs = torch.randn(size, 4, 3)

        def backward(xs=xs, place=place):
            for x in xs:
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how == "autocast"):
                    loss = F.cross_entropy(model(x), torch.randint(2, (4,))) / 4
                scaler.scale(loss * float("inf") if how == "scaler" and place == 4 else loss).backward()

        if how == "closure":
            optimizers[0].step(backward)
        else:
            backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=how != "zeros")


HOWS = ("plain", "fused", "foreach", "two", "zeros", "closure", "scaler", "autocast", "one layer is frozen")


SIZES = [
    ([4, 4, 4, 4, 4, 4, 4], []),
    ([1, 1, 2, 2, 4, 4, 4], []),
    ([5, 4, 4, 4, 4, 4, 4], ["!irregular-window 1"]),
    ([4, 4, 8, 4, 4, 4, 4], ["!irregular-window 3"]),
    ([4, 4, 7, 4, 7, 4, 4], ["!leftover-gradients 3"]),
]


@pytest.mark.parametrize(
    ("how", "sizes", "expected"),
    [(how, *SIZES[(k + more) % 5]) for k, how in enumerate(HOWS) for more in (0, 2)],  # two of each
)
def test_the_verdict_is_that_of_the_sizes(how, sizes, expected):
    with audit() as report:
        run_with(how, sizes)
    assert verdicts(report) == expected
    assert [finding.times for finding in report.errors] == [2 if how == "two" else 1] * len(expected)
