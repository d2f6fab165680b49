"""What the auditor says about sequences of windows, over a list and over a `DataLoader`.

A run is a list of epochs, and an epoch is a list of what happens in it: `4` is four micro-batches
and an update, `"+3"` three micro-batches without one, `"z3"` three micro-batches that are zeroed.
`by` is what each loss is divided by: a number, or None for the size of its own window. The verdicts
were written down before the first run.
"""

import pytest
import torch
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from gradaudit import audit
from runs import net, update, with_sgd

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


RAMP = [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]

RIGHT = {
    "a tail in each epoch": ([[4, 4, 2]] * 3, None),
    "a resumed run, whose first epoch is short": ([[4, 2], [4, 4, 2], [4, 4, 2]], None),
    "epochs shorter than a window": ([[2], [2], [2], [2]], None),
    "a ramp": ([RAMP], None),
    "a ramp that multiplies by the batch": ([RAMP], 1 / 16),
    "a ramp divided by its end": ([RAMP], 4),
    "a ramp that is mostly at its start": ([[1] * 20 + [2] * 4 + [4] * 4], 1 / 16),
    "a ramp over epochs with tails": ([[1, 1, 2, 2, 2, 1], [3, 3, 3, 2], [4, 4, 4, 2], [4, 4, 4, 2]], None),
    "shrinking to single steps": ([[4, 4, 4], [1] * 10], None),
    "as many tokens as fit, in every epoch": ([[3, 4, 5, 4, 1]] * 3, None),
    "half the window from the second epoch on, times the batch": ([[8] * 5, [4] * 3], 1 / 16),
    "windows that go on over the epochs": ([[4, 4, "+2"], [2, 4, 4], [4, 4, "+2"], [2, 4, 4]], 4),
}


@pytest.mark.parametrize("loader", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_said_about_windows_that_are_meant(name, loader):
    epochs, by = RIGHT[name]
    with audit() as report:
        run(epochs, by, loader)
    assert verdicts(report) == []
    assert [f for f in report.errors if f.rule != "loss-scale" or by != 1] == []


FIRST, LEFT = "!irregular-window 1", "!leftover-gradients"
LOST, LOST_WHOLE = "!discarded-gradients", "?discarded-gradients"
WRONG = {  # where a loader tells more than a list, the second verdict is for the loader
    "early, and not divided": ([[1, 8, 8, 8, 8]], 1, [FIRST]),
    "half a window, then a whole one": ([[2, 4]] * 3, 4, [FIRST]),
    "early in every epoch": ([[1, 4, 4]] * 3, 4, [FIRST]),
    "short at both ends of an epoch": ([[3, 4, 1]] * 3, 4, [], [FIRST]),
    "late in every epoch": ([[5, 4, "+3"]] * 4, 4, [FIRST, LEFT], [FIRST, LEFT, "!leftover-gradients 3"]),
    "a tail in the next epoch": ([[4, 4, "+3"]] * 2, 4, [LEFT, "!leftover-gradients 3"]),
    "one update in an epoch": ([[4, "+3"]] * 4, 4, [FIRST, LEFT], [LEFT, "!leftover-gradients 2"]),
    "a single step left out at the end of an epoch": (
        [[1, 1, 1, "+1"], [1, 1, 1, 1]],
        1,
        ["!irregular-window 4"],
        ["!leftover-gradients 4"],
    ),
    "a step left out": ([[4, 4, 8, 4, 4, 4]], 4, ["!irregular-window 3"]),
    "one of many steps of one left out": ([[1, 1, 1, 2, 1, 1, 1, 1, 1]], 1, ["!irregular-window 4"]),
    "the condition turned round": ([[1, 1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 1]], 4, ["!irregular-window 4"]),
    "left out late": ([[4] * 30 + [8] + [4] * 10], 4, ["!irregular-window 31"]),
    "left out after a ramp, not divided": ([[1, 1, 2, 2, 4, 4, 4, 8, 4, 4, 4]], 1, ["!irregular-window 8"]),
    "the tail zeroed": ([[4, 4, "z2"]] * 3, 4, [LOST]),
    "the tail zeroed, and the counter goes on": (
        [[1] * 9, [2, 2, 2, "z1"], [1, 2, 2, "z1"], [1, 2, 2]],
        1 / 16,
        [LOST],
    ),
    "the tail zeroed on a short ramp": ([[1, 1, 2, 2, 3, "z1"], [3, 4, "z3"], [1, 4, 4]], 1 / 16, [LOST]),
    "every second step left out": ([[4, 8, 4, 8, 4, 8]], 4, [FIRST]),
    "a part zeroed early": ([[4, 4, "z2", 4, 4, 4, 4, 4]], 4, [LOST]),
    "the end never used": ([[4, 4, 4, "+2"]], 4, [LEFT]),
    "no number": ([[3, 1, 4, 2, 6, 5]], 4, []),
    "larger at the end": ([[4, 4, 4, 8]], 4, []),
    "twice as large at first": ([[8, 4, 4, 4, 4]], 4, []),
    "whole windows zeroed": ([[4, 4, "z4", 4, 4, 4]], 4, [LOST_WHOLE]),
    "whole windows zeroed on the way down and up": ([[4, 2, "z2", 2, 4]], None, [LOST_WHOLE]),
    "cut in two": ([[4, 4, 4, 4, 3, 1, 4, 4, 4]], 4, []),
}


@pytest.mark.parametrize("loader", [False, True])
@pytest.mark.parametrize("name", WRONG)
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
