"""The final test: 20 questions from the whole course, drawn by a seed; `python -m course_utils.final --seed 1`.

Half of them are statements to be called true or not, from the beliefs and facts of `data/claims.csv`; half are cards
from the ends of the notebooks. Every notebook is in every test. Consecutive seeds go round all beliefs and all cards.
"""

import argparse
import ast
import csv
import io
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from course_utils import data
from course_utils.practice.display import ASK, RIGHT, WRONG, as_static, box, folded, show_widget

NUMBER = 20
SHORT = 160  # characters; a long statement gives away that it is true
TRUE, NOT = "true as it stands", "not true as it stands"


@dataclass(frozen=True)
class Question:
    """One question: a statement that is `true` or not, or a card, for which `true` is None."""

    notebook: str
    text: str
    answer: str
    true: bool | None = None


def final_test(seed: int = 1) -> None:
    """Shows the test of a seed: with widgets and a score where a kernel is live, else with answers that unfold."""
    from ipywidgets import HTML, Button, Checkbox, Layout, RadioButtons, VBox

    questions = draw(seed)
    rows, marks, answers = [], [], []
    for number, question in enumerate(questions, 1):
        asked = f"{number}. {question.text}"
        mark = HTML()
        if question.true is None:
            answer = Checkbox(description="I knew it", indent=False)
            rows += [HTML(folded(asked, question.answer)), answer, mark]
        else:
            answer = RadioButtons(options=[TRUE, NOT], value=None, layout=Layout(width="auto"))
            rows += [HTML(box(ASK, escape(asked))), answer, mark]
        answers.append(answer)
        marks.append(mark)
    button, total = Button(description="Score"), HTML()

    def score(_) -> None:
        right = [is_right(question, answer.value) for question, answer in zip(questions, answers, strict=True)]
        for question, mark, was_right in zip(questions, marks, right, strict=True):
            if question.true is not None:
                mark.value = box(RIGHT if was_right else WRONG, escape(question.answer))
        total.value = box(ASK, f"{sum(right)} of {len(right)} right.")

    button.on_click(score)
    static = "".join(folded(f"{number}. {q.text}", q.answer) for number, q in enumerate(questions, 1))
    show_widget(VBox([*rows, button, total]), as_static(static, as_text(questions, seed)))


def is_right(question: Question, value: str | bool | None) -> bool:
    """Whether a choice answers a statement rightly, or a card was known.

    >>> is_right(Question("02_zeroing", "step() clears .grad.", "Not as it stands.", true=False), NOT)
    True
    """
    if question.true is None:
        return bool(value)
    return value == (TRUE if question.true else NOT)


def draw(seed: int) -> list[Question]:
    """The questions of one test, in a random order."""
    statements, cards = _statements(), _cards()
    notebooks = sorted(cards)
    extra = max(0, NUMBER - len(notebooks))
    second = {notebooks[(seed * extra + k) % len(notebooks)] for k in range(extra)}
    questions = []
    for place, name in enumerate(notebooks):
        kinds = [statements.get(name, []), cards[name]]
        if (seed + place) % 2:
            kinds.reverse()
        kinds = [kind for kind in kinds if kind]
        questions += [_turn(kind, seed // 2, name) for kind in kinds[: 2 if name in second else 1]]
    for name in notebooks:  # where a notebook has but one kind
        if len(questions) < NUMBER and name not in second and statements.get(name) and cards[name]:
            kind = cards[name] if (seed + notebooks.index(name)) % 2 == 0 else statements[name]
            questions.append(_turn(kind, seed // 2, name))
    random.Random(seed).shuffle(questions)
    return questions[:NUMBER]


def _turn(kind: Sequence[Question], turn: int, name: str) -> Question:
    """The question whose turn it is, in an order that is mixed but always the same."""
    return random.Random(name).sample(kind, len(kind))[turn % len(kind)]


def _statements() -> dict[str, list[Question]]:
    """For each notebook its facts: as each is believed and, where that is wrong and the fact is short, as it is."""
    found: dict[str, list[Question]] = {}
    for row in csv.DictReader(io.StringIO(data.read("claims.csv").decode("utf-8"))):
        first = re.split(r"(?<=[.])\s+(?=[A-Z])", row["statement"])[0]
        holds = row["verdict"] == "true"
        for text, true in ((row["belief"], holds), (first, True)):
            if text == first and (holds or len(first) > SHORT):
                continue
            answer = f"{'True' if true else 'Not'} as it stands. {row['statement']}"
            found.setdefault(row["notebook"], []).append(Question(row["notebook"], text, answer, true))
    return found


def _cards() -> dict[str, list[Question]]:
    """For each notebook its cards, from the notebooks beside the package or from the package itself."""
    packed = data.folder() / "cards.json"
    cards = json.loads(packed.read_text(encoding="utf-8")) if packed.is_file() else read_cards()
    return {name: [Question(name, *card) for card in pairs] for name, pairs in cards.items()}


def read_cards() -> dict[str, list[list[str]]]:
    """The cards of every notebook, read from its cell that calls `recall`.

    **Raises:** `DataError` if the folder of notebooks is not there.
    """
    folder = Path(__file__).parents[2] / "notebooks"
    paths = sorted(folder.glob("*.ipynb"))
    if not paths:
        raise data.DataError(f"the final test is drawn from the cards of the notebooks, and there are none in {folder}")
    return {path.stem: list(_in_notebook(path)) for path in paths}


def _in_notebook(path: Path):
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and source.startswith("recall("):
            call = ast.parse(source).body[0].value
            yield from (list(ast.literal_eval(card)) for card in call.args)


def as_text(questions: Sequence[Question], seed: int) -> str:
    """The test for paper, in Markdown: the questions, then, apart from them, the answers."""
    lines = [f"# Final test {seed}", "", f"Of a statement: is it {TRUE}? If not, correct it.", ""]
    lines += [f"{number}. {_asked(q)}" for number, q in enumerate(questions, 1)]
    lines += ["", f"# Answers to final test {seed}", ""]
    lines += [f"{number}. {q.answer} ({q.notebook})" for number, q in enumerate(questions, 1)]
    return "\n".join(lines)


def as_html(questions: Sequence[Question], seed: int) -> str:
    """The test for paper, in HTML; the answers begin on a page of their own."""
    asked = "".join(f"<li>{escape(_asked(question))}</li>" for question in questions)
    answers = "".join(f"<li>{escape(q.answer)} ({escape(q.notebook)})</li>" for q in questions)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>Final test {seed}</title><style>li {{margin-bottom: 1em}}</style></head><body>"
        f"<h1>Final test {seed}</h1><p>Of a statement: is it {TRUE}? If not, correct it.</p><ol>{asked}</ol>"
        f'<h1 style="break-before: page">Answers to final test {seed}</h1><ol>{answers}</ol></body></html>\n'
    )


def _asked(question: Question) -> str:
    return question.text if question.true is None else f"Statement: {question.text}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m course_utils.final", description="Prints a final test.")
    parser.add_argument("--seed", type=int, default=1, help="which test (default 1)")
    parser.add_argument("--html", action="store_true", help="as HTML, for printing, in place of Markdown")
    options = parser.parse_args(arguments)
    print((as_html if options.html else as_text)(draw(options.seed), options.seed))


if __name__ == "__main__":
    main()
