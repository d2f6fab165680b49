"""Several ranks under the auditor, and scripts under torchrun as on a cluster."""

import json
import subprocess
import sys
from pathlib import Path

import on_ranks
import pytest
import torch

from course_utils.ranks import Ranks

SCRIPT = Path(on_ranks.__file__)


@pytest.fixture(scope="module")
def two():
    with Ranks(2, timeout=60) as group:
        yield group


def torchrun(*arguments, cwd):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    return subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("kind", "findings"),
    [
        ("right", []),
        ("every", [("advice", "sync-cadence")]),
        ("never", [("error", "sync-cadence")]),
        ("undivided", [("error", "loss-scale")]),
        ("own means", [("error", "token-weights")]),
    ],
)
def test_a_loop_by_hand_is_judged_on_each_rank(two, kind, findings):
    assert two.run(on_ranks.audited, on_ranks.by_hand, kind) == [findings, findings]


def test_a_rank_that_forgets_to_zero_is_named_on_that_rank(two):
    first, second = two.run(on_ranks.audited, on_ranks.by_hand, "never zeroed")
    assert ("error", "stale-gradients") not in first
    assert ("error", "stale-gradients") in second


@pytest.mark.parametrize(
    ("counts", "undecided"),
    [
        ([[4, 4, 4, 4, 4], [4, 4, 4, 4, 4]], []),
        ([[4, 2, 1, 7, 3, 3], [1, 1, 2, 5, 1]], ["loss-scale"]),
        ([[5, 5, 3, 3], [1, 1]], ["loss-scale"]),
        ([[5, 5], []], ["loss-scale"]),  # one rank has all: each of its losses has the coefficient 1
    ],
)
def test_train_epoch_on_ragged_shards_has_no_error_and_what_one_rank_cannot_see_is_undecided(two, counts, undecided):
    first, second = two.run(on_ranks.audited, on_ranks.with_cross_entropy, counts)
    assert not [rule for level, rule in first + second if level == "error"]
    assert [rule for level, rule in first if level == "undecided"] == undecided


def test_a_script_learns_the_same_under_torchrun_as_on_ranks(two, tmp_path):
    torch.set_default_dtype(torch.float64)
    try:
        expected = two.run(on_ranks.on_this_rank, "DDP", 3, "SGD", True)[0][2]
    finally:
        torch.set_default_dtype(torch.float32)
    run = torchrun(SCRIPT, "parameters.pt", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert all(map(torch.equal, expected, torch.load(tmp_path / "parameters.pt")))


def test_under_torchrun_each_rank_has_its_own_report(tmp_path):
    run = torchrun("-m", "course_utils.audit", "--json", "report.json", SCRIPT, "never", cwd=tmp_path)
    assert run.returncode == 1
    for rank in range(2):
        assert f"Rank {rank} of 2. 12 backward calls" in run.stdout
        result = json.loads((tmp_path / f"report-rank{rank}.json").read_text())
        assert [(f["level"], f["rule"]) for f in result["findings"]] == [("error", "sync-cadence")]
        assert result["script_exit"] == 0
