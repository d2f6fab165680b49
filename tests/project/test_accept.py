"""The command that accepts a script: the handed one, single fixes and the solution."""

import re
import signal

import pytest
from scripts import FIXES, HANDED, edited, solved

from course import NOTEBOOKS
from course_utils.project.__main__ import ACCEPTED, CANNOT_JUDGE, FAILED, main
from course_utils.project.accept import Runs, _on_two_ranks, accept

SIX = ["memory", "division", "tail", "tokens", "scaler", "resume"]
SHOWN = re.search(r"^```\n(FAILS.*?)\n```$", NOTEBOOKS["12_project"].prose, flags=re.M | re.S)[1].splitlines()


def failed(script):
    return [name for name, passed, _ in accept(script) if not passed]


def test_the_handed_script_fails_in_six_named_ways_as_the_notebook_shows(tmp_path, capsys):
    assert main(["start", str(tmp_path)]) == ACCEPTED
    capsys.readouterr()
    assert main(["accept", str(tmp_path / "train.py")]) == FAILED
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [["FAILS", name] for name in SIX]
    assert lines[-1] == f"not accepted: {', '.join(SIX)}"
    assert set(SHOWN) <= set(lines)


@pytest.mark.exhaustive
@pytest.mark.parametrize("names", [("memory", "tail"), ("division", "resume"), ("tokens", "scaler")])
def test_fixes_remove_exactly_their_names(train_py, names):
    """Division, tail and tokens are told apart by their shares in test_checks.py."""
    fixes = [edit for name in names for edit in FIXES[name]]
    assert failed(train_py(edited(*fixes))) == [name for name in SIX if name not in names]


@pytest.mark.exhaustive
def test_the_notebooks_solution_is_accepted(train_py):
    assert failed(train_py(solved())) == []


BUGS = {  # which are none of the six
    "torch.distributed.all_reduce(total)": "pass",
    "window_loss += loss.detach()": "window_loss += schedule.step() or loss.detach()",
    "lr=options.lr": "lr=options.lr / 1000",
}


@pytest.mark.exhaustive
def test_other_bugs_in_the_solution_are_found_at_the_end(train_py):
    source = solved()
    for old, new in BUGS.items():
        assert source.count(old) == 1
        source = source.replace(old, new)
    assert failed(train_py(source)) == ["exact", "ranks", "audit", "loss"]


def test_ranks_that_wait_for_each_other_are_told_so(train_py, tmp_path, monkeypatch):
    monkeypatch.setattr("course_utils.project.accept.LIMIT", 5)
    passed, says = _on_two_ranks(Runs(train_py("import time; time.sleep(1000)"), tmp_path), None)
    assert not passed
    assert "Does each rank make the same collective calls?" in says


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("\ndef train(:\n", "SyntaxError"),
        ("while True: pass\n", "had not ended after 20 s"),
        ("import os; os._exit(3)", "ended with status 3"),
        ("print('junk')\n", "20 micro-batches make 0 updates with"),
        (HANDED.replace("random.Random(epoch)", "random"), "the same order"),
    ],
    ids=["syntax", "endless", "silent", "junk", "random"],
)
@pytest.mark.exhaustive
def test_a_script_that_cannot_be_judged_is_an_error_with_a_reason(train_py, capsys, monkeypatch, source, says):
    monkeypatch.setattr("course_utils.project.accept.LIMIT", 20 if source.startswith("while") else 300)
    assert main(["accept", str(train_py(source))]) == CANNOT_JUDGE
    error = capsys.readouterr().err
    assert says in error
    assert ("\npython " in error) == ("ended" in error)


def test_what_is_missing_or_unwritable_is_said_at_once(tmp_path, train_py, capsys):
    script = train_py(HANDED)
    for arguments, says in (
        (["accept", tmp_path / "none.py"], f"there is no file {tmp_path / 'none.py'}"),
        (["accept", tmp_path / "none"], "there is no file"),
        (["start", tmp_path], "File exists"),
    ):
        assert main(list(map(str, arguments))) == CANNOT_JUDGE
        assert says in capsys.readouterr().err
    assert script.read_text(encoding="utf-8") == HANDED


def test_an_interrupt_is_one_line_and_no_verdict(train_py, capsys, monkeypatch, interruptible):
    monkeypatch.setattr("course_utils.project.accept.Runs", lambda *_: signal.raise_signal(signal.SIGINT))
    assert main(["accept", str(train_py(HANDED))]) == CANNOT_JUDGE
    assert capsys.readouterr().err.endswith("project: interrupted, nothing is judged\n")
