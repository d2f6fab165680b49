"""The score that survives a restart: in a file beside the notebook, which never breaks a cell."""

import json
import os
import stat
import sys

import pytest

from course_utils.practice.score import Score, score_file


@pytest.fixture
def file(tmp_path):
    return tmp_path / ".02_zeroing.score.json"


def answered(file):
    """A score as a learner leaves it when the kernel ends."""
    score = Score(file)
    for question, choice in (("Which?", "a"), ("Who?", "b"), ("When?", None)):
        score.ask(question)
        score.choose(question, choice)
        score.compare(question, choice, choice == "a")
    score.judge("train", True, True)
    score.judge("slope", True, False)
    score.judge("dirty", False, False)
    score.deal(["Why?", "How?"])
    score.know("Why?", True)
    return score


def test_what_was_answered_is_there_after_a_restart_when_its_cell_has_been_run(file):
    before = answered(file).text()
    score = Score(file)
    assert score.text().startswith("Nothing is answered here yet. Waiting for you: 0 predictions")
    assert [score.ask(question) for question in ("Which?", "Who?", "When?")] == ["a", "b", None]
    for exercise in ("train", "slope", "dirty"):
        score.judge(exercise, False, False)  # the stub is untouched
    assert score.deal(["Why?", "How?"]) == [True, False]
    assert score.text() == before


def test_a_prediction_that_was_compared_before_the_restart_does_not_count_again(file):
    answered(file)
    score = Score(file)
    score.ask("Who?")
    score.choose("Who?", "a")
    assert not score.compare("Who?", "a", True)
    assert "predictions 0 right of 1 made (1 asked)" in score.text()
    score.ask("Who?")  # its cell is run again: it starts over
    score.choose("Who?", "a")
    assert score.compare("Who?", "a", True)
    assert "predictions 1 right of 1 made (1 asked)" in score.text()


def test_an_exercise_that_was_passed_stays_so_in_the_next_kernel_but_one(file):
    answered(file)
    for _ in range(2):
        score = Score(file)
        score.ask("Which?")  # another cell, which writes the file
        score.choose("Which?", "b")
    score.judge("train", True, False)
    assert "exercises 1 passed of 1 tried (1 set)" in score.text()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe\x00"],
    ids=["empty", "cut", "no text"],
)
def test_a_file_that_cannot_be_understood_is_as_none(file, content):
    file.write_bytes(content)
    score = Score(file)
    assert score.ask("Which?") is None
    score.choose("Which?", "a")
    score.judge("train", True, True)
    assert Score(file).ask("Which?") == "a"  # it has been replaced


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of Unix")
def test_a_folder_that_cannot_be_written_breaks_nothing(tmp_path):
    folder = tmp_path / "is a file"
    folder.write_text("")
    answered(folder / ".02.score.json")
    if os.geteuid():  # root may write anywhere
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        answered(tmp_path / ".02.score.json")
        tmp_path.chmod(stat.S_IRWXU)


def test_a_score_without_a_file_writes_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answered(None)
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_small_and_leaves_nothing_unfinished(file):
    answered(file)
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert json.loads(file.read_text(encoding="utf-8"))["exercises"] == {"train": True, "slope": False}


# Which file it is.


def test_the_file_is_beside_the_notebook_that_jupyter_names(tmp_path):
    environment = {"JPY_SESSION_NAME": str(tmp_path / "notebooks" / "02_zeroing.ipynb")}
    assert score_file(environment) == tmp_path / "notebooks" / ".02_zeroing.score.json"


def test_the_file_is_beside_the_notebook_that_vs_code_names(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__vsc_ipynb_file__", str(tmp_path / "02.ipynb"), raising=False)
    assert score_file({}) == tmp_path / ".02.score.json"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"JPY_SESSION_NAME": ""},
        {"JPY_SESSION_NAME": "a-console-1234"},
        {"JPY_SESSION_NAME": "/content/02.ipynb", "COLAB_RELEASE_TAG": "release-colab-2026"},
        {"JPY_SESSION_NAME": "/home/me/02.ipynb", "COURSE_SCORE": "off"},
    ],
    ids=["run by a program", "no name", "a console", "Colab", "switched off"],
)
def test_elsewhere_there_is_no_file(environment):
    assert score_file(environment) is None


def test_no_test_and_no_notebook_under_test_has_one():
    assert os.environ["COURSE_SCORE"] == "off"
