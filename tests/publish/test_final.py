"""The final test: every notebook in each, every belief and every card over the seeds, on the screen and on paper."""

import re
import runpy
import sys

import IPython.display
import pytest
from course import FACTS
from course import NOTEBOOKS as BOOKS
from ipywidgets import Button, Checkbox, RadioButtons
from terminal import in_terminal

from course_utils.practice.display import COURSE
from course_utils.publish import PublishError, final, notebook
from course_utils.publish.final import (
    NOT,
    NUMBER,
    TRUE,
    as_html,
    as_text,
    draw,
    final_test,
    read_cards,
)

CARDS = {name: book.cards for name, book in BOOKS.items() if name[0].isdigit()}
NOTEBOOKS = CARDS.keys()
ROUND = 96  # seeds within which every question has had its turn


@pytest.fixture(scope="module")
def drawn():
    """Many tests, for which the notebooks and the facts are read once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(final, "read_cards", lambda: CARDS)
        patch.setattr(final, "read_facts", lambda: FACTS)
        return {seed: draw(seed) for seed in range(ROUND)}


def test_every_test_has_as_many_different_questions_and_every_notebook(drawn):
    for seed, questions in drawn.items():
        assert len(set(questions)) == len(questions) == NUMBER, seed
        assert {question.notebook for question in questions} == NOTEBOOKS
        kinds = [question.true for question in questions]
        assert abs(kinds.count(None) - NUMBER / 2) <= 1, seed  # cards; and of the statements about half are true
        assert abs(kinds.count(True) - kinds.count(False)) <= 4, seed


def test_a_course_of_more_notebooks_than_questions_has_a_question_from_each(monkeypatch):
    many = {f"{number:02}_notebook": [("Why?", f"Because of {number}.")] for number in range(NUMBER + 5)}
    monkeypatch.setattr(final, "read_cards", lambda: many)
    monkeypatch.setattr(final, "read_facts", dict)
    assert sorted(question.notebook for question in draw(1)) == list(many)


def test_over_the_seeds_every_belief_and_every_card_has_its_turn(drawn):
    asked = {(question.notebook, question.text) for questions in drawn.values() for question in questions}
    beliefs = {(fact.notebook, fact.belief) for fact in FACTS.values() if fact.notebook in NOTEBOOKS}
    cards = {(name, card[0]) for name, cards in CARDS.items() for card in cards}
    assert len(beliefs) > 50
    assert len(cards) > 30
    assert not (beliefs | cards) - asked


def test_a_seed_always_draws_the_same_test_and_another_seed_another(drawn):
    assert draw(7) == drawn[7]
    assert drawn[7] != drawn[8]
    assert len(draw(-1)) == len(draw(10**12)) == NUMBER


def test_a_statement_is_called_true_only_if_its_verdict_is_or_it_is_the_corrected_one(drawn):
    facts = {fact.belief: fact for fact in FACTS.values()}
    for question in (question for questions in drawn.values() for question in questions):
        if question.true is not None:
            fact = facts.get(question.text)
            assert question.true == (fact is None or fact.verdict == "true")
            assert question.answer.startswith("True as it stands. " if question.true else "Not as it stands. ")
            assert fact is None or question.answer.endswith(fact.statement)


def test_on_the_screen_the_score_counts_and_corrects(drawn, monkeypatch):
    boxes, bundles = [], []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw, metadata: bundles.append(bundle))
    original = final.show_widget
    monkeypatch.setattr(final, "show_widget", lambda widget, *rest: (boxes.append(widget), original(widget, *rest)))
    final_test(3)
    (box,), (bundle,) = boxes, bundles
    assert bundle["text/html"].count("<details") == NUMBER
    assert bundle["text/plain"] == as_text(drawn[3], 3)
    assert bundle[COURSE] == {"kind": "final-test"}
    *rows, button, total = box.children
    assert isinstance(button, Button)
    choices = [row for row in rows if isinstance(row, RadioButtons | Checkbox)]
    assert len(choices) == NUMBER
    button.click()
    assert f"0 of {NUMBER} right." in total.value
    for question, choice in zip(drawn[3], choices, strict=True):
        choice.value = True if question.true is None else (TRUE if question.true else NOT)
    button.click()
    assert f"{NUMBER} of {NUMBER} right." in total.value
    wrong = next(place for place, question in enumerate(drawn[3]) if question.true is False)
    choices[wrong].value = TRUE
    button.click()
    assert f"{NUMBER - 1} of {NUMBER} right." in total.value
    assert "Not as it stands." in rows[rows.index(choices[wrong]) + 1].value


def test_on_paper_the_answers_stand_apart_from_the_questions(drawn):
    questions = drawn[1]
    for page in (as_text(questions, 1), as_html(questions, 1)):
        asked, answers = re.split(r"Answers to final test 1", page, maxsplit=1)
        assert len(re.findall(r"^\d+\. |<li>", asked, flags=re.M)) == NUMBER
        assert len(re.findall(r"^\d+\. |<li>", answers, flags=re.M)) == NUMBER
        assert "as it stands. " not in asked
    assert "break-before: page" in as_html(questions, 1)


@pytest.mark.parametrize("answers", [True, False])
def test_a_file_gets_the_answers_only_if_they_are_asked_for(answers, drawn, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["final", "--seed", "5", *["--answers"] * answers])
    monkeypatch.delitem(sys.modules, "course_utils.final", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("course_utils.final", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out == as_text(drawn[5], 5, answers=answers) + "\n"
    assert ("Answers" in as_text(drawn[5], 5, answers=answers)) == answers


CTRL_D = "\4"


@pytest.fixture
def typed(drawn, tmp_path):
    """Types into a terminal that asks test 5: the status of the command, and all that was shown."""
    pytest.importorskip("pty")
    code = f"""
import sys
from course_utils.publish import final
from course_utils.publish.final import Question
final.draw = lambda seed: {drawn[5]!r}  # quicker than reading the notebooks
sys.exit(final.main(["--seed", "5", *sys.argv[1:]]))
"""
    return lambda columns, keys, *options: in_terminal([sys.executable, "-c", code, *options], columns, tmp_path, keys)


def test_a_terminal_shows_each_answer_after_enter_in_lines_as_wide_as_it_is(drawn, typed):
    columns, entered = 60, 3
    status, shown = typed(columns, "\n" * entered + CTRL_D)
    words = " ".join(shown.split())
    assert status == 0
    assert max(map(len, shown.splitlines())) <= columns
    assert f" {entered + 2}. " not in words
    for number, question in enumerate(drawn[5][:entered], 1):
        assert words.index(f" {number}. ") < words.index(question.answer)
    for number, question in enumerate(drawn[5][entered:], entered + 1):
        assert question.answer not in words, number


def test_a_terminal_shows_all_at_once_if_answers_are_asked_for(drawn, typed):
    status, shown = typed(80, "", "--answers")
    assert status == 0
    assert shown.split() == as_text(drawn[5], 5).split()
    assert max(map(len, shown.splitlines())) <= 80


def test_without_notebooks_the_error_says_what_is_missing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(notebook, "folder", lambda: tmp_path)
    with pytest.raises(PublishError, match=f"there are no notebooks in {tmp_path}"):
        read_cards()
    assert final.main([]) == 2
    assert "final: there are no notebooks in" in capsys.readouterr().err
