"""The final test: every notebook in each, every belief and every card over the seeds, on the screen and on paper."""

import csv
import io
import re
import subprocess
import sys
from pathlib import Path

import IPython.display
import pytest
from ipywidgets import Button, Checkbox, RadioButtons

from course_utils import data
from course_utils.practice import final
from course_utils.practice.final import (
    NOT,
    NUMBER,
    TRUE,
    Question,
    as_html,
    as_text,
    draw,
    final_test,
    is_right,
    read_cards,
)

NOTEBOOKS = {path.stem for path in (Path(final.__file__).parents[2] / "notebooks").glob("*.ipynb")}
ROUND = 80  # seeds within which every question has had its turn


@pytest.fixture(scope="module")
def drawn():
    return {seed: draw(seed) for seed in range(ROUND)}


def test_every_test_has_20_different_questions_and_every_notebook(drawn):
    assert len(NOTEBOOKS) <= NUMBER
    for seed, questions in drawn.items():
        assert len(set(questions)) == len(questions) == NUMBER, seed
        assert {question.notebook for question in questions} == NOTEBOOKS


def test_over_the_seeds_every_belief_and_every_card_has_its_turn(drawn):
    asked = {(question.notebook, question.text) for questions in drawn.values() for question in questions}
    rows = csv.DictReader(io.StringIO(data.read("claims.csv").decode("utf-8")))
    beliefs = {(row["notebook"], row["belief"]) for row in rows if row["notebook"] in NOTEBOOKS}
    cards = {(name, card[0]) for name, cards in read_cards().items() for card in cards}
    assert len(beliefs) > 100
    assert len(cards) > 100
    assert not (beliefs | cards) - asked


def test_true_and_untrue_statements_and_cards_are_balanced(drawn):
    every = [question.true for questions in drawn.values() for question in questions]
    assert 0.4 < every.count(None) / len(every) < 0.6
    assert 0.3 < every.count(True) / (every.count(True) + every.count(False)) < 0.6
    assert all(
        any(q.true for q in questions) and any(q.true is False for q in questions) for questions in drawn.values()
    )


def test_a_seed_always_draws_the_same_test_and_another_seed_another():
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)
    assert len(draw(-1)) == len(draw(10**12)) == NUMBER


def test_a_statement_is_called_true_only_if_its_verdict_is_or_it_is_the_corrected_one(drawn):
    rows = {row["belief"]: row for row in csv.DictReader(io.StringIO(data.read("claims.csv").decode("utf-8")))}
    for question in (question for questions in drawn.values() for question in questions):
        if question.true is not None:
            row = rows.get(question.text)
            assert question.true == (row is None or row["verdict"] == "true")
            assert question.answer.startswith("True as it stands. " if question.true else "Not as it stands. ")
            assert row is None or question.answer.endswith(row["statement"])


def test_a_choice_is_right_if_it_is_what_the_statement_is():
    assert is_right(Question("", "", "", True), TRUE)
    assert not is_right(Question("", "", "", True), NOT)
    assert is_right(Question("", "", "", False), NOT)
    assert not is_right(Question("", "", "", False), None)
    assert is_right(Question("", "", ""), True)
    assert not is_right(Question("", "", ""), False)


def test_on_the_screen_the_score_counts_and_corrects(monkeypatch):
    boxes, bundles = [], []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw, metadata: bundles.append(bundle))
    original = final.show_widget
    monkeypatch.setattr(final, "show_widget", lambda widget, *rest: (boxes.append(widget), original(widget, *rest)))
    final_test(3)
    (box,), (bundle,) = boxes, bundles
    assert bundle["text/html"].count("<details") == NUMBER
    assert bundle["text/plain"] == as_text(draw(3), 3)
    *rows, button, total = box.children
    assert isinstance(button, Button)
    choices = [row for row in rows if isinstance(row, RadioButtons | Checkbox)]
    assert len(choices) == NUMBER
    button.click()
    assert "0 of 20 right." in total.value
    for question, choice in zip(draw(3), choices, strict=True):
        choice.value = True if question.true is None else (TRUE if question.true else NOT)
    button.click()
    assert "20 of 20 right." in total.value
    wrong = next(place for place, question in enumerate(draw(3)) if question.true is False)
    choices[wrong].value = TRUE
    button.click()
    assert "19 of 20 right." in total.value
    assert "Not as it stands." in rows[rows.index(choices[wrong]) + 1].value


def test_on_paper_the_answers_stand_apart_from_the_questions():
    questions = draw(1)
    for page in (as_text(questions, 1), as_html(questions, 1)):
        asked, answers = re.split(r"Answers to final test 1", page, maxsplit=1)
        assert len(re.findall(r"^\d+\. |<li>", asked, flags=re.M)) == NUMBER
        assert len(re.findall(r"^\d+\. |<li>", answers, flags=re.M)) == NUMBER
        assert "as it stands. " not in asked
    assert "break-before: page" in as_html(questions, 1)


def test_the_command_prints_the_test_of_its_seed():
    command = [sys.executable, "-m", "course_utils.final", "--seed", "5"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("# Final test 5\n")
    assert run.stdout.count("\n") == 2 * NUMBER + 7


def test_without_notebooks_the_error_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(final, "__file__", str(tmp_path / "course_utils" / "final.py"))
    with pytest.raises(data.DataError, match="drawn from the cards of the notebooks"):
        read_cards()


@pytest.mark.parametrize("name", sorted(NOTEBOOKS))
def test_every_card_can_be_asked_by_itself(name):
    cards = read_cards()[name]
    assert cards or name == "00_start"
    for question, answer in cards:
        assert answer
        leans_on_another = re.search(r"^(And|But) |^[^,]*\b(that|it)\?$|^\w+( else)? (does|is|can) it\b", question)
        assert not leans_on_another, question
