"""`SideBySide`: what it says of loops whose errors are known."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_utils.ranks.side_by_side import SideBySide, exact, share

N = 2


def collate(samples):
    return {"x": torch.tensor(samples)[:, None], "y": 3 * torch.tensor(samples)[:, None] + 1}


def linear():
    torch.manual_seed(0)
    return nn.Linear(1, 8)


def mean_loss(model, batch):
    return (model(batch["x"]) - batch["y"]).square().mean()


def loop(model, loader, factor=1.0):
    """The update of the large batch, times a factor, also on several ranks."""
    wrapped = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1.0)
    batches = list(share(loader))
    for start in range(0, len(batches), N):
        window = batches[start : start + N]
        total = torch.tensor(float(sum(len(batch["x"]) for batch in window)))
        if dist.is_initialized():
            dist.all_reduce(total)
            total /= dist.get_world_size()
        for batch in window:
            (mean_loss(wrapped, batch) * len(batch["x"]) / total * factor).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def mean_of_means(model, loader, n=N):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for k, batch in enumerate(share(loader), start=1):
        (mean_loss(model, batch) / n).backward()
        if k % n == 0 or k == len(share(loader)):
            optimizer.step()
            optimizer.zero_grad()


@pytest.fixture
def beside():
    torch.set_default_dtype(torch.float64)
    pieces = [[1.0], [2.0, 5.0], [0.5], [3.0], [4.0, 1.0, 2.0], [1.5]]
    equal, fixed = [[1.0], [4.0], [2.0], [0.0]], [[1.0, 2.0], [4.0, 0.0]]
    made = SideBySide(pieces, collate, linear, mean_loss, N, equal, fixed)
    yield made
    made.close()


def test_errors_windows_and_scheduler_on_one_rank_and_on_two(beside, capsys):
    rows = beside.compare("made up", correct=loop)
    assert exact(rows)
    assert [row["windows"] for row in rows] == [[[0, 1], [2]], [[0, 1, 2, 3], [4, 5]]]
    assert capsys.readouterr().out.splitlines()[1].split() == ["correct", *["exact"] * 6, "2", "1", "[2,", "2]"]


def test_a_mean_of_means_is_exact_for_equal_micro_batches_only_and_halves_a_short_window(beside):
    found = beside.epoch(mean_of_means)
    assert found["full"] > 0.01
    assert found["short"] == pytest.approx(0.5)
    assert exact([beside.epoch(mean_of_means, pieces=beside.equal)])


def test_what_cannot_run_is_read_from_the_record(beside):
    row = {"library": "made up", "form": "guide", "windows": [[0]], "scheduled": 1}
    kept = [row | dict.fromkeys(("equal", "fixed", "full", "short"), 0.5) | {"ranks": ranks} for ranks in (1, 2)]
    beside.recorded = {"versions": {"no_such_package": "1.0"}, "rows": kept}
    assert beside.compare("made up", "no_such_package", guide=loop) == kept
    assert beside.versions()[1] == "recorded: no_such_package 1.0"


def test_a_library_of_another_version_than_the_recorded_one_is_not_run(beside):
    installed = "tqdm"
    assert beside.runs(installed)
    beside.recorded = {"versions": {installed: "0.0.1"}, "rows": []}
    assert not beside.runs(installed)
    assert beside.runs("torch")
