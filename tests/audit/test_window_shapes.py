"""What the auditor says about sequences of windows: each is run as a real loop, over a list and over a `DataLoader`.

A run is a list of epochs, and an epoch is a list of what happens in it: `4` is four micro-batches and an update, `"+3"`
three micro-batches without one, `"z3"` three micro-batches that are zeroed. `by` is what each loss is divided by:
a number, or None for the size of its own window. The verdicts were written down before the first run.
"""

from itertools import islice

import pytest
import torch
from runs import net, update, with_sgd
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import exhaustive
from gradaudit import audit
from gradaudit.rules.shapes import odd_window

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


class Endless(list):
    """A sampler that begins again."""

    def __iter__(self):
        while True:
            yield from super().__iter__()


def verdicts(report):
    """Such as "!irregular-window 3": an error that shows first in update 3."""
    said = [f for f in report.findings if f.rule in RULES]
    return [f"{LEVELS[f.level]}{f.rule} {f.evidence.get('update', '')}".strip() for f in said]


def from_both(names):
    """Each name over a list or a loader, in turns, and over the other one in the exhaustive run."""
    cases = [(name, loader) for name in names for loader in (False, True)]
    return pytest.mark.parametrize(
        ("name", "loader"), exhaustive.mark(cases, but=[(name, k % 2 == 1) for k, name in enumerate(names)])
    )


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
    "the condition turned round": (
        [[1, 1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 1]],
        4,
        ["!irregular-window 4", "?irregular-window"],  # the second asks why steps of one are divided by 4
    ),
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
    "every second step left out": ([[4, 8, 4, 8, 4, 8]], 4, ["!irregular-window 2"]),
    "a part zeroed early": ([[4, 4, "z2", 4, 4, 4, 4, 4]], 4, ["!discarded-gradients"]),
    "the end never used": ([[4, 4, 4, "+2"]], 4, ["!leftover-gradients"]),
    "no number": ([[3, 1, 4, 2, 6, 5]], 4, ["?irregular-window"]),
    "larger at the end": ([[4, 4, 4, 8]], 4, ["?irregular-window 4"]),
    "larger at the end, from one": ([[1, 1, 1, 1, 2]], 1, ["?irregular-window 5"]),
    "twice as large at first": ([[8, 4, 4, 4, 4]], 4, ["?irregular-window 1"]),
    "whole windows zeroed": ([[4, 4, "z4", 4, 4, 4]], 4, ["?discarded-gradients"]),
    "whole windows zeroed on the way down and up": ([[4, 2, "z2", 2, 4]], None, ["?discarded-gradients"]),
    "a window zeroed in each half of an epoch": ([[2, "z2", 2, "z2", 2, "z2", 2, 2, 2]], 2, ["?discarded-gradients"]),
    "a window zeroed after most of the others": ([[2, "z2", 2, "z2", 2, 2]], 2, ["!discarded-gradients"]),
    "windows of two sizes zeroed": ([[4, 4, "z4", 4, 2, "z2", 2, 2]], None, ["?discarded-gradients"]),
    "cut in two": ([[4, 4, 4, 4, 3, 1, 4, 4, 4]], 4, ["?irregular-window 5"]),
}


@from_both(WRONG)
def test_a_window_that_is_not_meant_is_named_with_its_update(name, loader):
    epochs, by, *expected = WRONG[name]
    with audit() as report:
        run(epochs, by, loader)
    assert verdicts(report) == expected[-1 if loader else 0]


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


# What is said


def message_of(epochs, by, loader=False):
    with audit() as report:
        run(epochs, by, loader)
    (finding,) = [f for f in report.findings if f.rule in RULES]
    return finding.message, finding.evidence.get("sizes")


def test_the_sizes_around_the_event_are_shown():
    message, sizes = message_of([[4] * 30 + [8] + [4] * 10], 4)
    assert message.endswith("those around it 4; a step was left out: ..., 4, 4, 4, 4, 8, 4, 4, 4, 4, ...")
    assert (len(sizes), sizes[10]) == (20, 8)
    message, sizes = message_of([[4, 4, 4, 4, 4, 4, 4, 4, 4, 8, 4]], 4)
    assert message.endswith(": ..., 4, 4, 4, 4, 4, 4, 4, 8, 4")
    message, sizes = message_of([[5, 4, 4]], 4)
    assert message == "update 1 holds 5 micro-batches, most hold 4: 5, 4, 4"
    assert sizes == [5, 4, 4]


@pytest.mark.parametrize(("loader", "cause"), [(True, "were left over from the epoch before"), (False, "apparently")])
def test_a_leak_is_certain_where_a_loader_shows_the_end_of_the_epoch(loader, cause):
    assert cause in message_of([[4, 4, "+2"], [4, 4], [4, 4, "+2"], [4, 4]], 4, loader)[0]


@pytest.mark.parametrize(("loader", "cause"), [(True, "; a step was left out:"), (False, "or an epoch ended")])
def test_where_no_epochs_are_seen_the_cause_of_one_long_window_is_open(loader, cause):
    assert cause in message_of([[4, 4, 7, 4, 4, 4]], 4, loader)[0]


def test_an_epoch_that_ended_without_a_step_is_a_cause_where_nothing_is_zeroed():
    model = net()
    optimizer, loader = SGD(model.parameters(), lr=0.01), source(14, 4, loader=True)
    with audit() as report:
        for _ in range(2):
            for i, (x, y) in enumerate(loader):
                (F.cross_entropy(model(x), y) / 4).backward()
                if (i + 1) % 4 == 0:
                    optimizer.step()
    (message,) = [f.message for f in report.findings if f.rule == "irregular-window"]
    assert message.endswith("; a step was left out, or an epoch ended without one: 4, 4, 4, 6, 4, 4")


@pytest.mark.parametrize(("count", "cause"), [(19, "; a step was left out:"), (13, "or an epoch ended")])
def test_a_sampler_that_goes_on_after_its_own_length_hides_where_an_epoch_ends(count, cause):
    """The third window holds the batches from the 9th to the 15th."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(4 * count, 3), torch.randint(2, (4 * count,))
    batches = iter(DataLoader(TensorDataset(x, y), 4, sampler=Endless(range(4 * count))))
    with audit() as report:
        for size in (4, 4, 7, 4, 4, 4):
            for x, y in islice(batches, size):
                (F.cross_entropy(model(x), y) / 4).backward()
            update(optimizer)
    (message,) = [f.message for f in report.findings if f.rule == "irregular-window"]
    assert cause in message


def test_a_first_window_is_off_by_one_only_if_all_between_it_and_the_last_are_alike():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.01)
    with audit() as report:
        for size, by in [(5, 4), (3, 3), *[(4, 4)] * 5]:
            for x in torch.randn(size, 4, 3):
                (model(x).exp().sum().log() / by).backward()  # it may be a mean or a sum
            update(optimizer)
    assert verdicts(report) == ["?irregular-window 1"]


def test_what_is_left_at_the_end_of_the_run_is_counted():
    assert message_of([[4, 4, "+2"]], 4)[0] == (
        "the gradients of the last 2 backward calls of the run were never used by a step"
    )
    assert "of the last backward call of the run" in message_of([[4, 4, "+1"]], 4)[0]


# Which epoch a batch is from


def test_evaluation_and_a_second_loader_do_not_begin_an_epoch():
    model, optimizer = with_sgd()
    train, evaluation, extra = (source(count, 4, loader=True) for count in (10, 3, 4))
    with audit() as report:
        for _ in range(2):
            more = iter(extra)
            for i, (x, y) in enumerate(train):
                u, v = next(more) if i % 3 == 0 else (x, y)
                (F.cross_entropy(model(torch.cat([x, u])), torch.cat([y, v])) / 4).backward()
                if (i + 1) % 4 == 0:
                    update(optimizer)
                    with torch.no_grad():
                        for _ in evaluation:
                            pass
            optimizer.zero_grad()
    epochs = [call.epoch for call in report.history.backwards]
    assert epochs == [1] * 10 + [2] * 10
    assert [w.over_epochs for w in report.history.windows] == [False] * 4


def test_a_second_loader_that_is_drawn_from_last_hides_no_tail():
    model, optimizer = with_sgd()
    first, second = source(10, 4, loader=True), source(7, 4, loader=True)
    with audit() as report:
        more = iter(second)
        for _ in range(4):
            for i, (x, y) in enumerate(first):
                try:
                    u, v = next(more)
                except StopIteration:
                    more = iter(second)
                    u, v = next(more)
                (F.cross_entropy(model(torch.cat([x, u])), torch.cat([y, v])) / 4).backward()
                if (i + 1) % 4 == 0 or i + 1 == 10:
                    update(optimizer)
    assert verdicts(report) == []


def test_a_sampler_that_goes_on_after_its_own_length_has_no_epochs():
    model, optimizer = with_sgd()
    batches = iter(DataLoader(TensorDataset(torch.randn(6, 3), torch.randint(2, (6,))), 2, sampler=Endless(range(6))))
    with audit() as report:
        for _ in range(5):
            x, y = next(batches)
            F.cross_entropy(model(x), y).backward()
            update(optimizer)
    assert [call.epoch for call in report.history.backwards] == [1, 1, 1, None, None]


@pytest.mark.parametrize("kind", ["endless", "iterable", "list of a loader", "in a list first"])
def test_a_loader_whose_end_is_not_seen_has_no_epochs(kind):
    model, optimizer = with_sgd()
    data = TensorDataset(torch.randn(12, 3), torch.randint(2, (12,)))

    class Endless:
        def __iter__(self):
            while True:
                yield from range(12)

    class Stream(IterableDataset):
        def __iter__(self):
            yield from data

    with audit() as report:
        for _ in range(3):
            loaders = {
                "endless": lambda: DataLoader(data, 2, sampler=Endless()),
                "iterable": lambda: DataLoader(Stream(), 2),
                "list of a loader": lambda: list(DataLoader(data, 2)),
                "in a list first": lambda: sorted(DataLoader(data, 2), key=len),
            }
            for i, (x, y) in zip(range(6), loaders[kind](), strict=False):
                (F.cross_entropy(model(x), y) / 2).backward()
                if i % 2:
                    update(optimizer)
    assert {call.epoch for call in report.history.backwards} == {None}
    assert report.errors == []


def test_the_loader_is_as_before_when_the_audit_has_ended():
    before = vars(_BaseDataLoaderIter)["__next__"]

    def fail():
        assert vars(_BaseDataLoaderIter)["__next__"] is not before
        raise KeyError

    with pytest.raises(KeyError), audit():
        fail()
    assert vars(_BaseDataLoaderIter)["__next__"] is before


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
    exhaustive.mark(
        [(how, *case) for how in HOWS for case in SIZES],
        but=[(how, *SIZES[(k + more) % 5]) for k, how in enumerate(HOWS) for more in (0, 2)],  # two of each
    ),
)
def test_the_verdict_is_that_of_the_sizes(how, sizes, expected):
    with audit() as report:
        run_with(how, sizes)
    assert verdicts(report) == expected
    assert [finding.times for finding in report.errors] == [2 if how == "two" else 1] * len(expected)


# Sizes alone

RAMP_WITH_TAILS = [2, 2, 2, 1, 4, 4, 4, 1, 8, 8, 8]


@pytest.mark.parametrize(
    ("sizes", "ends", "usual", "odd"),
    [
        ([4, 4, 1, 3, 4, 4], {2, 3}, 4, None),
        ([4, 4, 1, 3, 4, 4], set(), 4, ("cut", 2, 4)),
        ([4, 4, 3, 1, 4], set(), 4, ("cut", 2, 4)),
        (RAMP_WITH_TAILS, set(), 8, None),
        (RAMP_WITH_TAILS, {3, 7}, 8, None),
        ([4, 8], set(), 4, None),  # of two windows nobody knows which is odd
        ([5, 4, 4, 6], set(), 4, ("first", 0, 4)),
        ([3, 3, 1, 4, 2, 6], set(), 3, ("all", 0, 3)),
        ([3, 3, 3, 1, 4, 2], set(), 3, None),
        ([5, 1, 2, 3, 4], set(), 5, None),  # too few to miss a frequent one
    ],
)
def test_the_odd_window_is_found_by_sizes_alone(sizes, ends, usual, odd):
    assert odd_window(sizes, ends, usual) == odd
