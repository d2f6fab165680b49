"""The command that accepts a training script: what it says of the handed one, of single fixes and of the solution."""

import os
import re
import signal
import time

import pytest
from course import NOTEBOOKS
from scripts import FIXES, HANDED, edited, solved

from course_utils.project.__main__ import ACCEPTED, CANNOT_JUDGE, FAILED, main
from course_utils.project.accept import CHECKS, PLANTED, CannotJudge, accept
from course_utils.project.page import as_page
from course_utils.project.process import Endless, run


@pytest.fixture
def text(tmp_path):
    """A text in another alphabet, of as few words as a text may have; it is read faster than the dictionary."""
    letters = "абвгдежзийк"
    words = [f"{a}{b}{c}{'о' * k}" for k, a in enumerate(letters) for b in letters for c in letters]
    path = tmp_path / "text.txt"
    path.write_text(" ".join(words), encoding="utf-8")
    return path


def judged(folder, capsys, *arguments):
    """The lines that the command prints of the handed script."""
    assert main(["start", str(folder)]) == ACCEPTED
    capsys.readouterr()
    assert main(["accept", str(folder / "train.py"), *map(str, arguments)]) == FAILED
    return capsys.readouterr().out.splitlines()


SHOWN = re.search(r"^```\n(FAILS.*?)\n```$", NOTEBOOKS["12_project"].prose, flags=re.M | re.S)[1].splitlines()


def test_the_handed_script_fails_in_six_named_ways(tmp_path, capsys, text):
    page = tmp_path / "report.html"
    lines = judged(tmp_path, capsys, "--html", page, "--text", text)
    assert [line.split()[:2] for line in lines[:-1]] == [["FAILS", n] if n in PLANTED else ["-", n] for n in CHECKS]
    assert lines[-1] == f"not accepted: {', '.join(PLANTED)}"
    number = re.compile(r"\d+(\.\d+)?(e-\d+)?")
    assert {number.sub("0", line) for line in SHOWN} <= {number.sub("0", line) for line in lines}
    html = page.read_text(encoding="utf-8")
    assert html.count("<svg") == 2
    for shown in ("train.py: not accepted", "Memory", "Windows of 4", "text.txt", "PyTorch"):
        assert shown in html


@pytest.mark.exhaustive
def test_the_notebook_shows_what_the_command_prints(tmp_path, capsys):
    assert set(SHOWN) <= set(judged(tmp_path, capsys))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FIXES)
def test_each_single_fix_removes_exactly_its_name(train_py, name):
    found = accept(train_py(edited(*FIXES[name])))
    assert found.failed == [other for other in PLANTED if other != name]


@pytest.mark.exhaustive
def test_the_notebooks_solution_is_accepted(train_py):
    begun = []
    found = accept(train_py(solved()), began=begun.append)
    assert found.accepted, found.results
    assert len(begun) == 12
    assert found.held_out[0] < found.held_out[1] - 0.2
    page = as_page(found, "train.py", "<i>")
    assert page.count("<svg") == 4
    for shown in ("train.py: accepted", "Loss", "Memory", "Windows of 4", "Ledger", "&lt;i&gt;"):
        assert shown in page


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("torch.distributed.all_reduce(total)", "pass", "ranks"),
        ("number < len(window)", "True", "ranks"),
        ("window_loss += loss.detach()", "window_loss += schedule.step() or loss.detach()", "exact"),
        ("lr=options.lr", "lr=options.lr / 1000", "loss"),
        ("        optimizer.zero_grad()\n", "", "division"),
    ],
)
def test_a_bug_in_the_solution_that_is_none_of_the_six_is_found_at_the_end(train_py, old, new, name):
    source = solved()
    assert source.count(old) == 1
    found = accept(train_py(source.replace(old, new)))
    assert name in found.failed


@pytest.mark.exhaustive
def test_a_text_of_the_learners_own_may_have_any_alphabet(train_py, text):
    assert accept(train_py(solved()), text).accepted


@pytest.mark.exhaustive
def test_a_rank_that_keeps_the_other_waiting_fails_by_name(train_py):
    source = solved().replace("torch.distributed.all_reduce(total)", "__import__('time').sleep(1000 * RANK)")
    (result,) = [result for result in accept(train_py(source), limit=30).results if result.name == "ranks"]
    assert result.passed is False
    assert "had not ended after 30 s" in result.says


@pytest.mark.parametrize(
    ("source", "says"),
    [
        pytest.param("\ndef train(:\n", "line 2, SyntaxError", id="syntax"),
        pytest.param("while True: pass\n", "had not ended after 2 s", id="endless", marks=pytest.mark.exhaustive),
        pytest.param("import os; os._exit(3)", "with status 3: it printed nothing", id="silent",
                     marks=pytest.mark.exhaustive),
        pytest.param("print('junk')\n", "one update for each of the 20 micro-batches, and there are 0", id="junk",
                     marks=pytest.mark.exhaustive),
        pytest.param("import argparse\nargparse.ArgumentParser().parse_args()\n", "unrecognized arguments",
                     id="other-arguments", marks=pytest.mark.exhaustive),
        pytest.param("input()\n", "EOFError", id="asks", marks=pytest.mark.exhaustive),
        pytest.param(
            HANDED.replace("random.Random(options.seed + epoch)", "random"), "the same order", id="random",
            marks=pytest.mark.exhaustive,
        ),
    ],
)  # fmt: skip
def test_a_script_that_cannot_be_judged_is_an_error_with_a_reason(train_py, capsys, source, says):
    limit = "2" if "while" in source[:5] else "60"
    assert main(["accept", str(train_py(source)), "--limit", limit]) == CANNOT_JUDGE
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


def test_what_is_missing_or_unwritable_is_said_at_once(tmp_path, train_py, capsys):
    script = train_py(HANDED)
    short = tmp_path / "short.txt"
    short.write_text("too few words", encoding="utf-8")
    other = tmp_path / "other.txt"
    other.write_bytes("Größe".encode("latin-1"))
    for arguments, says in (
        ([str(tmp_path / "none.py")], f"there is no file {tmp_path / 'none.py'}"),
        ([str(script), "--text", str(tmp_path / "none.txt")], "none.txt"),
        ([str(script), "--text", str(short)], "has 3 different words"),
        ([str(script), "--text", str(other)], "other.txt must be saved as UTF-8"),
    ):
        assert main(["accept", *arguments]) == CANNOT_JUDGE
        assert says in capsys.readouterr().err
    for page in (tmp_path, tmp_path / "no" / "r.html"):
        with pytest.raises(SystemExit) as ended:
            main(["accept", str(script), "--html", str(page)])
        assert ended.value.code == CANNOT_JUDGE
        assert f"cannot write {page}" in capsys.readouterr().err
    assert main(["start", str(tmp_path)]) == CANNOT_JUDGE
    assert "may hold your work" in capsys.readouterr().err
    assert script.read_text(encoding="utf-8") == HANDED
    with pytest.raises(CannotJudge, match="no file"):
        accept(tmp_path)


def test_an_interrupt_is_one_line_and_no_verdict(train_py, capsys, monkeypatch, interruptible):
    monkeypatch.setattr("course_utils.project.accept.read_words", lambda text: signal.raise_signal(signal.SIGINT))
    assert main(["accept", str(train_py(HANDED))]) == CANNOT_JUDGE
    assert capsys.readouterr().err.endswith("project: interrupted, nothing is judged\n")


@pytest.mark.exhaustive
@pytest.mark.skipif(not hasattr(os, "setsid"), reason="needs groups of processes")
def test_what_an_endless_command_has_started_ends_with_it(tmp_path):
    started = tmp_path / "started.txt"
    source = tmp_path / "starts.py"
    source.write_text(
        "import subprocess, sys, time\n"
        "sleeps = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        f"open({str(started)!r}, 'w').write(str(sleeps.pid))\n"
        "time.sleep(100)\n"
    )
    with pytest.raises(Endless):
        run([source], tmp_path, 10)
    for _ in range(50):  # until the system has cleared it away
        try:
            os.kill(int(started.read_text()), 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("it is still there")
