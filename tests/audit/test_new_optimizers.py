"""Scripts that create a new optimizer for each update, over the same parameters."""

import pytest
from runs import data, found, net, update
from torch.nn import functional as F
from torch.optim import SGD

from gradaudit import audit

EARLY = ("irregular-window", "error")
LEFT = ("leftover-gradients", "error")


def train(ends, count, every=1, n=4):
    """Steps after the micro-batches in `ends`, and creates a new optimizer after every so many steps."""
    model, steps = net(), 0
    optimizer = SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(data(count)):
        (F.cross_entropy(model(x), y) / n).backward()
        if i in ends:
            steps += 1
            optimizer.step()
            if steps % every == 0:
                optimizer = SGD(model.parameters(), lr=0.1)
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("offset", "count", "sizes", "expected"),
    [
        (3, 16, [4, 4, 4, 4], []),
        (0, 17, [1, 4, 4, 4, 4], [EARLY]),
        (0, 19, [1, 4, 4, 4, 4], [EARLY, LEFT]),
        (3, 14, [4, 4, 4], [LEFT]),
    ],
)
def test_a_new_optimizer_for_each_update_counts_as_one(offset, count, sizes, expected):
    with audit() as report:
        train(range(offset, count, 4), count)
    assert found(report) == expected
    assert [(w.lane, w.number, w.size) for w in report.history.windows] == [
        ("SGD", number, size) for number, size in enumerate(sizes, 1)
    ]
    assert report.history.updates == {"SGD": len(sizes)}
    assert {call.users for call in report.history.backwards if call.used} == {("SGD",)}
    assert "SGD: " in report.summary()
    assert "SGD 2" not in report.summary()
    events = report.history.trace.events
    steps = [event for event in events if event.kind == "step"]
    assert {event.lane for event in events} == {"SGD"}
    assert all(w.event is event for w, event in zip(report.history.windows, steps, strict=True))


def test_trials_before_the_training_are_not_of_its_optimizer():
    model = net()
    with audit() as report:
        for ends, count in (([0], 1), ([0], 1), (range(3, 16, 4), 16)):
            optimizer = SGD(model.parameters(), lr=0.1)
            optimizer.zero_grad()
            for i, (x, y) in enumerate(data(count)):
                (F.cross_entropy(model(x), y) / count).backward()
                if i in ends:
                    update(optimizer)
    assert not any(rule == "irregular-window" for rule, _ in found(report))
    assert report.history.updates == {"SGD": 1, "SGD 2": 1, "SGD 3": 4}


def test_optimizers_of_several_updates_each_stay_apart():
    with audit() as report:
        train(range(3, 28, 4), 28, every=2)
    assert report.history.updates == {"SGD": 2, "SGD 2": 2, "SGD 3": 2, "SGD 4": 1}


def test_two_are_no_habit():
    with audit() as report:
        train(range(3, 8, 4), 8)
    assert report.history.updates == {"SGD": 1, "SGD 2": 1}


def test_those_that_leave_gradients_over_stay_apart():
    model = net()
    with audit() as report:
        for _ in range(4):
            optimizer = SGD(model.parameters(), lr=0.1)
            for i, (x, y) in enumerate(data(3)):
                (F.cross_entropy(model(x), y) / 2).backward()
                if i == 1:
                    update(optimizer)
    assert report.history.updates == {"SGD": 1, "SGD 2": 1, "SGD 3": 1, "SGD 4": 1}


def test_those_of_two_models_stay_apart():
    with audit() as report:
        models = net(), net()
        optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
        for x, y in data(8):
            for k, model in enumerate(models):
                F.cross_entropy(model(x), y).backward()
                optimizers[k].step()
                optimizers[k] = SGD(model.parameters(), lr=0.1)
                optimizers[k].zero_grad()
    assert found(report) == []
    assert report.history.updates == {"SGD": 8, "SGD 2": 8}
    assert [w.lane for w in report.history.windows] == ["SGD", "SGD 2"] * 8
    assert [call.users for call in report.history.backwards] == [("SGD",), ("SGD 2",)] * 8


@pytest.mark.parametrize(("count", "level"), [(12, None), (10, "error")])
def test_what_the_last_of_several_optimizers_leaves_is_in_no_update(count, level):
    """Each epoch has an optimizer of its own, and gradients that are left over stay in the model."""
    model = net()
    with audit() as report:
        for _ in range(3):
            optimizer = SGD(model.parameters(), lr=0.1)
            for i, (x, y) in enumerate(data(count)):
                (F.cross_entropy(model(x), y) / 4).backward()
                if i % 4 == 3:
                    update(optimizer)
    last = [f.level for f in report.findings if f.rule == "leftover-gradients" and f.lane == report.history.lanes[-1]]
    assert last == ([level] if level else [])
