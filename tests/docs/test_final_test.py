"""The final test: every notebook in each, and no statement called true that isn't."""

import sys

import pytest

import final_test
from course import FACTS
from course import NOTEBOOKS as BOOKS
from final_test import NUMBER, draw

CARDS = {name: book.cards for name, book in BOOKS.items() if book.numbered}


@pytest.fixture(scope="module")
def drawn():
    """Many tests, for which the notebooks and the facts are read once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(final_test, "read_notebooks", lambda: BOOKS)
        patch.setattr(final_test, "read_facts", lambda: FACTS)
        return {seed: draw(seed) for seed in range(24)}


def test_every_test_has_as_many_different_questions_and_every_notebook(drawn):
    for seed, questions in drawn.items():
        assert len(set(questions)) == len(questions) == NUMBER, seed
        assert {question.notebook for question in questions} == CARDS.keys()
        kinds = [question.true for question in questions]
        assert abs(kinds.count(None) - NUMBER / 2) <= 1, seed  # cards; and of the statements about half are true
        assert abs(kinds.count(True) - kinds.count(False)) <= 4, seed


def test_a_statement_is_called_true_only_if_its_verdict_is_or_it_is_the_corrected_one(drawn):
    facts = {fact.belief: fact for fact in FACTS.values()}
    for question in (question for questions in drawn.values() for question in questions):
        if question.true is not None:
            fact = facts.get(question.text)
            assert question.true == (fact is None or fact.verdict == "true")
            assert question.answer.startswith("True as it stands. " if question.true else "Not true as it stands. ")
            assert fact is None or question.answer.endswith(fact.statement)


@pytest.mark.parametrize("answers", [True, False])
def test_a_file_gets_the_answers_only_if_they_are_asked_for(answers, drawn, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["final_test.py", "--seed", "5", *["--answers"] * answers])
    final_test.main()
    asked, _, answered = capsys.readouterr().out.partition("# Answers to final test 5")
    assert all(question.asked in asked for question in drawn[5])
    assert all((question.answer in answered) == answers for question in drawn[5])
