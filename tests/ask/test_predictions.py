"""Each prediction of the course has its answer, and a sentence on why a wrong one tempts."""

import tomllib

import IPython.display
import pytest

from course import NOTEBOOKS
from course_utils import data, predict
from course_utils.ask.predictions import recorded

each_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


def tables(name):
    return tomllib.loads((data.folder() / "predictions" / f"{name}.toml").read_text(encoding="utf-8"))


def sentences(name):
    return {question: table["why"] for question, table in tables(name).items() if table.keys() == {"answer", "why"}}


@each_notebook
def test_each_prediction_has_a_sentence_and_none_is_left_over(name):
    questions = [prediction["question"] for prediction in NOTEBOOKS[name].predictions]
    assert list(sentences(name)) == questions
    assert [recorded()[question]["why"] for question in questions] == list(sentences(name).values())


def test_two_files_have_no_question_in_common_and_each_belongs_to_a_notebook():
    files = {path.stem for path in (data.folder() / "predictions").iterdir()}
    assert files == NOTEBOOKS.keys()
    questions = [question for name in NOTEBOOKS for question in sentences(name)]
    assert len(set(questions)) == len(questions)


def test_a_measurement_that_the_course_does_not_know_is_an_error():
    guess = predict("One weight: what is in .grad after the second backward()?", [-2, -6])
    with pytest.raises(AssertionError, match=r"measured '-2', but the course says '-6'"):
        guess.reveal(-2)


@pytest.mark.parametrize(("choice", "shown"), [("-2", True), ("-6", False), (None, False)])
def test_the_sentence_follows_a_wrong_choice_and_no_other(choice, shown, monkeypatch):
    bundles = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, **_: bundles.append(bundle))
    question = "One weight: what is in .grad after the second backward()?"
    guess = predict(question, [-2, -4, -6])
    guess._widget.value = choice
    guess.reveal(-6)
    why = recorded()[question]["why"]
    assert (f" {why}" in bundles[-1]["text/plain"]) == shown
    assert ("<code>backward()</code> adds it" in bundles[-1]["text/html"]) == shown
    assert why not in str(bundles[:-1])


def test_predictions_that_are_missing_or_damaged_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "folder", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no predictions in .*: install the course again"):
        recorded.__wrapped__()
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / "00_start.toml").write_text("[broken")
    with pytest.raises(ValueError, match=r"00_start\.toml is damaged .*: install the course again"):
        recorded.__wrapped__()
