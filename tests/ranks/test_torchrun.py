"""Scripts under torchrun as on a cluster, one of them under the auditor."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from test_ranks import alive

import audited_on_ranks
from course_utils.ranks import Ranks, ddp_example
from course_utils.ranks.script import TORCHRUN, last_words, run_python

SCRIPT = Path(audited_on_ranks.__file__)
LIMIT = {"title": "torchrun", "limit": 120}


@pytest.fixture(scope="module")
def two():
    with Ranks(2, timeout=60) as group:
        yield group


def test_under_torchrun_a_script_learns_the_same_as_on_ranks_and_each_rank_has_its_own_report(two, tmp_path):
    """One run, since each starts three processes that import torch."""
    torch.set_default_dtype(torch.float64)
    expected = two.run(audited_on_ranks.trained, "DDP", 3, "SGD", True)[0][2]
    command = "-m", "gradaudit", "--output-format", "json", "--output", "report.json", SCRIPT, "parameters.pt"
    status, output, _ = run_python(*TORCHRUN, *command, **LIMIT, cwd=tmp_path)
    assert status == 1
    assert all(map(torch.equal, expected, torch.load(tmp_path / "parameters.pt")))
    for rank, calls in enumerate((27, 24)):  # 20 of them by hand
        assert f"Rank {rank} of 2. {calls} backward calls" in output
        result = json.loads((tmp_path / f"report-rank{rank}.json").read_text())
        assert [f["rule"] for f in result["findings"] if f["level"] == "error"] == ["sync-cadence"]
        assert result["window"]["SGD"] == 4
        assert result["script_exit"] == 0


def example():
    return ddp_example.train(torch.distributed.get_rank(), 2).state_dict()


def test_the_script_to_copy_learns_under_torchrun_what_it_learns_on_ranks(two, tmp_path, monkeypatch):
    """In the notebook it is compared with one process."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # one would be too few
    torch.set_default_dtype(torch.float64)
    printed = run_python(*TORCHRUN, ddp_example.__file__, "weights.pt", **LIMIT, cwd=tmp_path)[1]
    assert "trained on 2 ranks, device: cpu" in printed
    torch.testing.assert_close(torch.load(tmp_path / "weights.pt"), two.run(example)[0], rtol=0, atol=1e-12)


def script(folder, *lines):
    """A script whose ranks note their process first; without torch, so that it starts at once."""
    path = folder / "script.py"
    note = 'open("pid" + os.environ["RANK"], "w").write(str(os.getpid()))'
    path.write_text("\n".join(["import os, sys, time", note, *lines]))
    return path


def noted(folder):
    return [int(path.read_text() or 0) for path in folder.glob("pid*")]


def test_a_rank_that_fails_is_an_error_with_its_lines_and_ends_the_other(tmp_path):
    fails = "if os.environ['RANK'] == '1': raise ValueError('the shard is empty')"
    status, output, late = run_python(*TORCHRUN, script(tmp_path, fails, "time.sleep(600)"), **LIMIT, cwd=tmp_path)
    assert (status, late) == (1, False)
    assert last_words(output).endswith("ValueError: the shard is empty")  # not torchrun's own
    assert "ChildFailedError" in output
    assert not alive(noted(tmp_path))


def test_after_an_interrupt_no_process_is_left(tmp_path, interruptible):
    def interrupt():
        while not (len(noted(tmp_path)) == 2 and all(noted(tmp_path))):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_python(*TORCHRUN, script(tmp_path, "time.sleep(600)"), **LIMIT, cwd=tmp_path)
    assert not alive(noted(tmp_path))


@pytest.mark.skipif(not hasattr(os, "setsid"), reason="needs groups of processes")
def test_a_script_that_is_late_ends_with_all_that_it_has_started(tmp_path):
    source = tmp_path / "starts.py"
    source.write_text(
        "import subprocess, sys, time\n"
        "sleeps = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(sleeps.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    seconds, output = 1, ""
    while not output.strip().isdigit():  # on a busy machine it may start late
        seconds *= 2
        output, late = run_python(source, title="starts", limit=seconds)[1:]
    assert late
    for _ in range(50):  # until the system has cleared it away
        if not alive([int(output)]):
            return
        time.sleep(0.1)
    pytest.fail("it is still there")
