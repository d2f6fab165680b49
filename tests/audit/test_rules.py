"""The rules as such, windows inferred and declared, and what one process says of ranks."""

from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gradaudit import audit
from runs import data, found, in_windows, mean, scaled_steps, train, update, with_sgd


def of_sizes(*sizes):
    return [pair for size in sizes for pair in data(1, size)]


LOADER = DataLoader(TensorDataset(torch.randn(37, 3), torch.randint(2, (37,))), 4)


@pytest.mark.parametrize(
    ("batches", "level"),
    [
        (of_sizes(4, 4, 4, 2, 4, 4, 4, 4), "advice"),
        (of_sizes(*(4, 4, 4, 8) * 3), "error"),
        (chain(*[LOADER] * 4), "advice"),  # an epoch ends in the middle of a window, the next at a window's end
    ],
)
def test_a_data_sets_short_last_batch_is_only_worth_advice(batches, level):
    model, optimizer = with_sgd()
    with audit() as report:
        for k, (x, y) in enumerate(batches, start=1):
            mean(model(x), y, 4).backward()
            if k % 4 == 0:
                update(optimizer)
    assert found(report) == [("token-weights", level)]


@pytest.mark.parametrize(("sizes", "n"), [((4, 4, 1), 4), ((1, 4), 4), ((4, 1), 4), ((1, 1, 2), 1), ((3, 5, 5), 5)])
def test_the_window_is_the_most_frequent_and_of_two_the_larger(sizes, n):
    with audit() as report:
        in_windows(mean, sizes)
    assert report.history.size(report.history.ledgers[0]) == n


@pytest.mark.parametrize("keyword", [True, False])
def test_a_declared_window_decides(keyword):
    with audit(window=4 if keyword else None) as report:
        if not keyword:
            report.declare_window(4)
        train(n=2)
    assert [f.rule for f in report.errors] == ["irregular-window"]
    assert "declared: 4" in report.findings[0].message
    with audit(window=2) as report:
        train(n=2)
    assert report.findings == []


def test_windows_that_grow_as_it_is_declared_are_right():
    with audit() as report:
        in_windows(lambda out, y, n: report.declare_window(n) or mean(out, y, n), (1, 1, 2, 2, 4, 4, 8, 8))
    assert report.findings == []


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "4"])
def test_a_window_is_a_whole_number(n):
    with pytest.raises(ValueError, match="whole number of micro-batches"), audit(window=n):
        raise AssertionError
    with audit() as report, pytest.raises(ValueError, match="whole number of micro-batches"):
        report.declare_window(n)


def test_a_call_that_the_scaler_refuses_is_the_cause_of_a_run_that_ends_there():
    with pytest.raises(RuntimeError, match="already been called"), audit() as report:
        scaled_steps(before_the_step=lambda model, optimizer, scaler: [scaler.unscale_(optimizer) for _ in range(2)])
    assert [f.rule for f in report.errors] == ["scaler-timing"]
