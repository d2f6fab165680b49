"""The auditor's command line, and four public loops that it judges."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from course_utils.audit.__main__ import main

pytestmark = pytest.mark.usefixtures("quick_scans")
LOOPS = Path(__file__).parents[1] / "public_loops"
DIAGNOSES = {
    "fabric_guide": {"irregular-window": "1, 8, 8, 8, 8", "loss-scale": "8.0 times", "leftover-gradients": "last 7"},
    "nanogpt": {"loss-scale": "5.0 times too large"},
    "gan": {"foreign-gradients": "loss of Adam in addition to its own"},
    "or_last": {"loss-scale": "2 micro-batches is divided by 4, so its update is 0.50"},
}
TRAIN = """
import sys, torch
from torch import nn
model = nn.Linear(3, 2)
optimizer = torch.optim.{optimizer}
for i in range(4):
    nn.functional.cross_entropy(model(torch.randn(4, 3)), torch.randint(2, (4,))).backward()
    optimizer.step()
    {zero}
{end}
"""


@pytest.fixture
def audited(tmp_path, capsys):
    """Runs a script here, as a command would: its status, its JSON, what it prints and what it complains of."""

    def run(script, *arguments, options=()):
        out = tmp_path / "findings.json"
        if not isinstance(script, Path):
            (tmp_path / "train.py").write_text(script)
            script = tmp_path / "train.py"
        status = main(["--json", str(out), *options, str(script), *arguments])
        printed = capsys.readouterr()
        return status, json.loads(out.read_text()), printed.out, printed.err

    return run


def script(end="", zero="optimizer.zero_grad()", optimizer="SGD(model.parameters(), lr=0.1)"):
    return TRAIN.format(end=end, zero=zero, optimizer=optimizer)


@pytest.mark.parametrize("name", DIAGNOSES)
def test_a_public_loop_is_diagnosed(name, audited):
    status, result, printed, _ = audited(LOOPS / f"{name}.py")
    assert status == 1
    errors = {f["rule"]: f for f in result["findings"] if f["level"] == "error"}
    assert errors.keys() == DIAGNOSES[name].keys()
    for rule, words in DIAGNOSES[name].items():
        assert words in errors[rule]["message"]
        assert errors[rule]["where"].startswith(f"{LOOPS / name}.py:")
    assert result["script_exit"] == 0
    printed = " ".join(printed.split())  # in one line
    assert all(error["message"] in printed for error in errors.values())


def test_as_a_command():
    command = [sys.executable, "-m", "course_utils.audit", str(LOOPS / "nanogpt.py")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr
    assert "ERROR loss-scale" in run.stdout


def test_a_clean_script_ends_with_0(audited):
    status, result, printed, _ = audited(script())
    assert (status, result["findings"], result["window"], result["script_exit"]) == (0, [], {"SGD": 1}, 0)
    assert "Nothing was found." in printed


@pytest.mark.parametrize(
    ("end", "exit", "complaint"),
    [
        ("1 / 0", 1, "ZeroDivisionError"),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no more')", 1, "no more"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("sys.exit(True)", 1, ""),
    ],
)
def test_a_script_that_fails_ends_with_3_and_its_findings(audited, end, exit, complaint):
    status, result, printed, errors = audited(script(end, zero="pass"))
    assert (status, result["script_exit"]) == (3, exit)
    assert [f["rule"] for f in result["findings"] if f["level"] == "error"] == ["stale-gradients"]
    assert f"ended with status {exit}" in printed
    assert complaint in errors
    assert "audit/__main__.py" not in errors


@pytest.mark.parametrize("end", ["sys.exit()", "sys.exit(0)", "sys.exit(None)"])
def test_a_script_that_ends_well_by_sys_exit_is_judged(audited, end):
    assert audited(script(end))[0] == 0
    assert audited(script(end, zero="pass"))[0] == 1


def test_a_script_that_cannot_be_compiled_or_never_steps(audited):
    status, result, _, errors = audited("def")
    assert (status, result["script_exit"]) == (3, 1)
    assert "SyntaxError" in errors
    status, result, printed, _ = audited("print('hello')")
    assert (status, result["findings"]) == (0, [])
    assert "no optimizer steps were seen" in printed


@pytest.mark.parametrize(
    "arguments",
    [["/nowhere.py"], [], ["--window", "0", __file__], ["--window", "x", __file__], ["--json", "/no/x", __file__]],
)
def test_bad_arguments_end_with_2(arguments, capsys):
    try:
        status = main(arguments)
    except SystemExit as ending:
        status = ending.code
    assert status == 2
    assert capsys.readouterr().err


def test_where_the_auditor_fails_the_status_is_2(audited, monkeypatch, tmp_path, capsys):
    from course_utils.observe.observer import Observer

    monkeypatch.setattr(Observer, "attach", lambda self: 1 / 0)
    (tmp_path / "train.py").write_text(script())
    assert main([str(tmp_path / "train.py")]) == 2
    assert "the auditor itself has failed" in capsys.readouterr().err


def test_the_script_sees_itself_and_its_arguments_as_always(audited, tmp_path):
    (tmp_path / "beside.py").write_text("x = 5")
    before = sys.argv, sys.path[:], sys.modules["__main__"]
    code = """
import pickle, sys
import beside
class Thing: pass
assert isinstance(pickle.loads(pickle.dumps(Thing())), Thing)
assert __name__ == "__main__" and __file__ == sys.argv[0]
assert sys.argv[1:] == ["--json", "x", "--window"], sys.argv
"""
    assert audited(code, "--json", "x", "--window")[1]["script_exit"] == 0
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


def test_a_declared_window(audited):
    status, result, _, _ = audited(script(), options=["--window", "2"])
    assert (status, result["findings"][0]["rule"]) == (1, "irregular-window")


def test_a_thread_that_outlives_the_script_is_seen(audited):
    code = script(zero="pass").replace("\n", "\n    ")
    code = (
        f"import threading, time\ndef train():\n    time.sleep(0.2)\n{code}\nthreading.Thread(target=train).start()\n"
    )
    status, result, _, _ = audited(code)
    assert (status, result["findings"][0]["rule"]) == (1, "stale-gradients")


def test_workers_and_fused_steps(audited):
    code = """
import torch
from torch import nn
from torch.utils.data import DataLoader
model = nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for x in DataLoader(torch.randn(8, 3), batch_size=4, num_workers=1):
    model(x).square().mean().backward()
    optimizer.step()
"""
    status, result, _, _ = audited(code)
    assert (status, result["findings"][0]["rule"]) == (1, "stale-gradients")
