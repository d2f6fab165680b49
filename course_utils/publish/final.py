"""The final test: questions from the numbered notebooks, drawn by a seed; `python -m course_utils.final --seed 1`.

Half of them are statements to be called true or not, from the facts and from what is believed instead; about as many
are true as are not. Half are cards from the ends of the notebooks. Each of these notebooks is in every test.
Consecutive seeds go round all beliefs and all cards.
"""

import argparse
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import chain

from course_utils.practice.display import ASK, RIGHT, WRONG, as_static, box, folded, show_widget
from course_utils.publish import PublishError
from course_utils.publish.facts import read_facts

NUMBER = 24  # questions
SHORT = 160  # characters; a long statement gives away that it is true
TRUE, NOT = "true as it stands", "not true as it stands"
_TASK = f"Is each statement {TRUE}? If not, correct it."


@dataclass(frozen=True)
class Question:
    """One question: a statement that is `true` or not, or a card, for which `true` is None."""

    notebook: str
    text: str
    answer: str
    true: bool | None = None


def final_test(seed: int = 1) -> None:
    """Shows the test of a seed: with widgets and a score where a kernel is live, otherwise with answers that unfold.

    Args:
        seed: Any whole number.

    Raises:
        PublishError: If the notebooks, whose cards it asks, are not there.
    """
    from ipywidgets import HTML, Button, Checkbox, Layout, RadioButtons, VBox

    questions = draw(seed)
    rows = []  # a question, what is chosen, and how it is marked
    for number, question in enumerate(questions, 1):
        asked = f"{number}. {question.text}"
        if question.true is None:
            rows.append((HTML(folded(asked, question.answer)), Checkbox(description="I knew it", indent=False), HTML()))
        else:
            choice = RadioButtons(options=[TRUE, NOT], value=None, layout=Layout(width="auto"))
            rows.append((HTML(box(ASK, escape(asked))), choice, HTML()))
    button, total = Button(description="Score"), HTML()

    def score(_) -> None:
        right = [is_right(question, choice.value) for question, (_, choice, _) in zip(questions, rows, strict=True)]
        for question, (_, _, mark), was_right in zip(questions, rows, right, strict=True):
            if question.true is not None:
                mark.value = box(RIGHT if was_right else WRONG, escape(question.answer))
        total.value = box(ASK, f"{sum(right)} of {len(right)} right.")

    button.on_click(score)
    html = "".join(folded(f"{number}. {q.text}", q.answer) for number, q in enumerate(questions, 1))
    static = as_static(html, as_text(questions, seed), {"kind": "final-test"})
    show_widget(VBox([*chain(*rows), button, total]), static)


def is_right(question: Question, value: str | bool | None) -> bool:
    """Whether a choice answers a statement rightly, or a card was known.

    >>> is_right(Question("02_zeroing", "step() clears .grad.", "Not as it stands.", true=False), NOT)
    True
    """
    if question.true is None:
        return bool(value)
    return value == (TRUE if question.true else NOT)


def draw(seed: int) -> list[Question]:
    """One question from each notebook and, up to `NUMBER`, a second one from some, of the other kind; shuffled."""
    statements, cards = _statements(), _cards()
    notebooks = sorted(cards)
    extra = max(0, NUMBER - len(notebooks))
    second = {notebooks[(seed * extra + k) % len(notebooks)] for k in range(extra)}
    turns = {}  # a question of each kind that a notebook has
    for place, name in enumerate(notebooks):
        turns[name] = [_turn(cards[name], seed // 2)] if cards[name] else []
        if name in statements:
            turns[name].insert(0, _statement(statements[name], seed // 2, place // 2))
        if (seed + place) % 2:
            turns[name].reverse()
    questions = [question for name in notebooks for question in turns[name][: 2 if name in second else 1]]
    for name in notebooks:  # instead of those of `second` that have one kind only
        if len(questions) < NUMBER and name not in second:
            questions += turns[name][1:]
    random.Random(seed).shuffle(questions)
    return questions


def _statement(statements: Sequence[Question], turn: int, place: int) -> Question:
    """One that is true or one that is not, in turn: from place to place in a test, from test to test at a place."""
    kind = [statement for statement in statements if statement.true == bool((turn + place) % 2)]
    return _turn(kind, turn // 2) if kind else _turn(statements, turn)


def _turn(kind: Sequence[Question], turn: int) -> Question:
    """The question whose turn it is, in an order that is mixed but always the same."""
    return random.Random(kind[0].notebook).sample(kind, len(kind))[turn % len(kind)]


def _statements() -> dict[str, list[Question]]:
    """By notebook: each fact as it is believed and, where that is wrong and the fact is short, as it is."""
    found: dict[str, list[Question]] = {}
    for fact in read_facts().values():
        first = re.split(r"(?<=[.])\s+(?=[A-Z])", fact.statement)[0]
        holds = fact.verdict == "true"
        for text, true in ((fact.belief, holds), (first, True)):
            if text == first and (holds or len(first) > SHORT):
                continue
            answer = f"{'True' if true else 'Not'} as it stands. {fact.statement}"
            found.setdefault(fact.notebook, []).append(Question(fact.notebook, text, answer, true))
    return found


def _cards() -> dict[str, list[Question]]:
    """By numbered notebook: its cards."""
    cards = {name: pairs for name, pairs in read_cards().items() if name[0].isdigit()}
    return {name: [Question(name, *card) for card in pairs] for name, pairs in cards.items()}


def read_cards() -> dict[str, list[tuple[str, str]]]:
    """The questions and answers of each notebook's cards."""
    from course_utils.publish.notebook import read_notebooks  # only here: it takes a second

    return {name: notebook.cards for name, notebook in read_notebooks().items()}


def as_text(questions: Sequence[Question], seed: int, answers: bool = True) -> str:
    """The test for paper, in Markdown: the questions and, if asked for, apart from them, the answers."""
    lines = [f"# Final test {seed}", "", _TASK, ""]
    lines += [f"{number}. {_asked(q)}" for number, q in enumerate(questions, 1)]
    if not answers:
        return "\n".join(lines)
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
        f"<h1>Final test {seed}</h1><p>{_TASK}</p><ol>{asked}</ol>"
        f'<h1 style="break-before: page">Answers to final test {seed}</h1><ol>{answers}</ol></body></html>\n'
    )


def _asked(question: Question) -> str:
    return question.text if question.true is None else f"Statement: {question.text}"


def ask(questions: Sequence[Question], seed: int, width: int) -> None:
    """Asks on a terminal: a question, then its answer when Enter is pressed. The end of the input ends the test.

    Args:
        questions: Of the test.
        seed: Its seed, for the head.
        width: Columns of the terminal.
    """
    print(f"Final test {seed}")
    print(_filled(f"{_TASK} Answer first, then press Enter to see the answer; Ctrl-C ends the test.", width))
    try:
        for number, question in enumerate(questions, 1):
            print(f"\n{_filled(f'{number}. {_asked(question)}', width)}")
            input()
            print(_filled(f"    {question.answer} ({question.notebook})", width))
    except (EOFError, KeyboardInterrupt):
        print()


def _filled(text: str, width: int) -> str:
    """Text in lines of at most this width; what follows a number keeps clear of it."""
    from gradaudit.text import lines_of  # with the auditor, which a notebook's final test does without

    lines = []
    for line in text.splitlines():
        indent = re.match(r" *", line)[0]
        lines += lines_of(line.strip(), width, indent, "    " if re.match(r"\d+\. ", line) else indent) or [""]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Prints a test, or asks its questions one by one where someone can press Enter, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.final",
        description="A final test over the whole course. On a terminal, Enter shows the answer to each question.",
    )
    parser.add_argument("--seed", type=int, default=1, help="which test (default 1)")
    parser.add_argument("--answers", action="store_true", help="print all questions, then all answers, and don't ask")
    parser.add_argument("--html", action="store_true", help="print it as HTML for paper, the answers on their own page")
    options = parser.parse_args(arguments)
    from gradaudit.text import width_of

    try:
        questions = draw(options.seed)
    except PublishError as problem:
        print(f"final: {problem}", file=sys.stderr)
        return 2
    text = (as_html if options.html else partial(as_text, answers=options.answers))(questions, options.seed)
    if options.html or not sys.stdout.isatty():
        print(text)
    elif options.answers or not sys.stdin.isatty():
        print(_filled(text, width_of(sys.stdout)))
    else:
        ask(questions, options.seed, width_of(sys.stdout))
    return 0


if __name__ == "__main__":
    sys.exit(main())
