"""A learner's own script, audited in a process of its own: here with real processes."""

import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from course_utils.practice import own_script
from course_utils.practice.exercises import judge
from course_utils.practice.own_script import MEANING, ScriptAudit, audit_script, public_loop
from course_utils.zoo import ZOO
from gradaudit import __main__ as command

LOOP = """
import sys, time, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    {}
    model(torch.ones(3, 2)).mean().backward()
    optimizer.step()
"""


def test_a_correct_script_runs_in_its_folder_with_its_arguments(train_py, capsys):
    path = train_py(LOOP.format("optimizer.zero_grad()") + "open('arguments.txt', 'w').write(str(sys.argv[1:]))\n")
    audited = audit_script("train.py", "none", ["--epochs", 1], folder=path.parent)
    assert (audited.status, audited.rules, audited.lanes, audited.stopped) == (0, [], {"SGD": 1}, False)
    assert path.with_name("arguments.txt").read_text() == "['--epochs', '1']"
    assert capsys.readouterr().out == "Nothing was found.\n"
    verdict = judge("own_script", audited)
    assert verdict.passed
    assert "you predicted none, the auditor found none, as you said; exit status 0" in verdict.message


def test_a_script_that_runs_too_long_is_stopped_and_judged_by_what_it_did(train_py, monkeypatch, capsys):
    path = train_py(LOOP.format("").replace("range(8)", "iter(int, 1)") + "    open('updates', 'a').write('.')\n")
    clock = count()

    def until_it_has_made_ten_updates(process):  # only then does the clock go on
        updates = path.with_name("updates")
        while process.poll() is None and not (updates.exists() and updates.stat().st_size > 10):
            time.sleep(0.05)

    monkeypatch.setattr(own_script.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(own_script, "_wait", until_it_has_made_ten_updates)
    audited = audit_script(path, "stale-gradients", folder=path.parent, limit=2)
    assert (audited.status, audited.rules, audited.stopped) == (3, ["stale-gradients"], True)
    assert capsys.readouterr().out.startswith("error: stale-gradients, train.py, line 8\n  Update 2 used")
    message = "you predicted stale-gradients, the auditor found stale-gradients (error), as you said; exit status 3"
    assert message in judge("own_script", audited).message


def test_a_process_that_has_lost_the_request_to_end_is_asked_again(monkeypatch):
    code = """
import signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: sys.exit(len(asked)) if asked else asked.append(1))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
    monkeypatch.setattr(own_script, "_GRACE", 0.5)
    own_script._stop(process)
    assert process.returncode == 1  # by itself, at the second request


def test_an_interrupt_ends_the_script(train_py, monkeypatch):
    started = []
    popen = subprocess.Popen

    def start(*arguments, **options):
        started.append(popen([sys.executable, "-c", "import time; time.sleep(600)"], **options))
        return started[0]

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(own_script.subprocess, "Popen", start)
    monkeypatch.setattr(own_script, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        audit_script(train_py(""), "none")
    assert started[0].poll() is not None


@pytest.mark.parametrize(
    ("name", "prediction"),
    [(None, None), (None, "none"), ("train.py", None), ("train.py", "gradients"), ("no.py", "none")],
)
def test_nothing_runs_before_there_is_a_script_and_a_prediction(train_py, monkeypatch, name, prediction):
    folder = train_py("").parent
    monkeypatch.setattr(own_script.subprocess, "Popen", None)
    assert audit_script(name, prediction, folder=folder) == ScriptAudit(name, prediction, folder=str(folder))


def test_every_loop_of_the_zoo_is_a_script_whose_name_says_nothing():
    listings = set()
    for number in range(len(ZOO)):
        path = Path(public_loop(number))
        text = path.read_text(encoding="utf-8")
        compile(text, str(path), "exec")
        assert path.name == f"loop_{number}.py"
        assert "specimen" not in text
        listings.add(text)
    assert len(listings) == len(ZOO)


@pytest.mark.parametrize("number", [-1, len(ZOO), 1.0, True, "7", None])
def test_a_number_that_no_loop_has_is_an_error(number):
    with pytest.raises(ValueError, match=f"from 0 to {len(ZOO) - 1}, got"):
        public_loop(number)


def test_the_exit_statuses_are_the_auditors():
    names = ("CLEAN", "FOUND", "CANNOT_RUN", "SCRIPT_FAILED", "NOTHING_JUDGED")
    assert [getattr(command, name) for name in names] == [getattr(own_script, name) for name in names] == list(MEANING)
