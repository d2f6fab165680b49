"""A final test over the whole course: `python docs/final_test.py [--seed 1] [--answers]`.

Half of its questions are statements to be called true or not, from the facts and from what is
believed instead; about as many are true as are not. Half are cards from the ends of the notebooks.
Each numbered notebook is in every test, and consecutive seeds go round all beliefs and all cards.
"""

import argparse
import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from notebooks import read_facts, read_notebooks

NUMBER = 24  # questions
SHORT = 160  # characters; a long statement gives away that it is true
TASK = "Is each statement true as it stands? If not, correct it."


class Question(NamedTuple):
    """One question: a statement that is `true` or not, or a card, for which `true` is None."""

    notebook: str
    text: str
    answer: str
    true: bool | None = None

    @property
    def asked(self) -> str:
        return self.text if self.true is None else f"Statement: {self.text}"


def draw(seed: int) -> list[Question]:
    """A question from each notebook and, up to `NUMBER`, another from some; shuffled."""
    statements, cards = _statements(), _cards()
    notebooks = sorted(cards)
    extra = NUMBER - len(notebooks)
    second = {notebooks[(seed * extra + k) % len(notebooks)] for k in range(extra)}
    questions = []
    for index, name in enumerate(notebooks):
        turns = [_statement(statements[name], seed // 2, index // 2), _turn(cards[name], seed // 2)]
        if (seed + index) % 2:
            turns.reverse()
        questions += turns[: 2 if name in second else 1]
    random.Random(seed).shuffle(questions)
    return questions


def _statement(statements: Sequence[Question], turn: int, index: int) -> Question:
    """One that is true or one that is not, in turn: within a test, and from test to test."""
    kind = [statement for statement in statements if statement.true == bool((turn + index) % 2)]
    return _turn(kind, turn // 2) if kind else _turn(statements, turn)


def _turn(kind: Sequence[Question], turn: int) -> Question:
    """The question whose turn it is, in an order that is mixed but always the same."""
    return random.Random(kind[0].notebook).sample(kind, len(kind))[turn % len(kind)]


def _statements() -> dict[str, list[Question]]:
    """By notebook: each fact as it is believed and, if that is wrong and it is short, as it is."""
    found: dict[str, list[Question]] = {}
    for fact in read_facts().values():
        first = re.split(r"(?<=[.])\s+(?=[A-Z])", fact.statement)[0]
        holds = fact.verdict == "true"
        for text, true in ((fact.belief, holds), (first, True)):
            if text == first and (holds or len(first) > SHORT):
                continue
            answer = f"{'True' if true else 'Not true'} as it stands. {fact.statement}"
            found.setdefault(fact.notebook, []).append(Question(fact.notebook, text, answer, true))
    return found


def _cards() -> dict[str, list[Question]]:
    """By numbered notebook: its cards."""
    books = [book for book in read_notebooks().values() if book.numbered]
    return {book.name: [Question(book.name, *card) for card in book.cards] for book in books}


def as_text(questions: Sequence[Question], seed: int, answers: bool) -> str:
    """The test in Markdown: the questions and, if asked for, apart from them, the answers."""
    parts = [f"# Final test {seed}", TASK, "\n".join(f"{n}. {q.asked}" for n, q in enumerate(questions, 1))]
    if answers:
        parts.append(f"# Answers to final test {seed}")
        parts.append("\n".join(f"{n}. {q.answer} ({q.notebook})" for n, q in enumerate(questions, 1)))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="A final test over the whole course.")
    parser.add_argument("--seed", type=int, default=1, help="which test (default: 1)")
    parser.add_argument("--answers", action="store_true", help="print the answers, too, after all questions")
    options = parser.parse_args()
    print(as_text(draw(options.seed), options.seed, options.answers))


if __name__ == "__main__":
    main()
