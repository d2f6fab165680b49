"""The interactive parts of a notebook: predictions, recall cards, the progress line.

Each shows a widget where a kernel is live and the same in plain HTML where none is (on GitHub, in
print), never the text of a widget, and describes itself in JSON.
"""

from collections.abc import Sequence
from html import escape
from textwrap import dedent
from typing import Any

from ipywidgets import HTML, Checkbox, HBox, Layout, RadioButtons, VBox

from course_utils.ask.display import ASK, BOX, RIGHT, WRONG, box, fold, show_fold, show_html, with_code
from course_utils.ask.predictions import recorded

FOLDED = "Your prediction"  # what shows of a reveal where the cell's outputs are folded
MEASURED = "What was measured, and why"  # what shows of one that explains itself

# What has been asked in this kernel, for the progress line.
_guesses: "dict[str, Guess]" = {}  # by question
_exercises: dict[str, bool] = {}  # passed or not
_cards: list[Any] = []  # the boxes to tick, of the cards that were shown last
_line: Any = None  # the widget that shows it, once there is one


class Guess:
    """A learner's prediction, made before an experiment and compared with its measurement."""

    def __init__(self, question: str, options: Sequence[str], widget: Any):
        self._question = question
        self._options = options
        self._widget = widget
        self.right = False  # known once it is compared
        _guesses[question] = self
        widget.observe(_count, names="value")

    @property
    def choice(self) -> str | None:
        """The option that the learner has chosen, or None."""
        return self._widget.value

    def reveal(
        self, measured: Any, because: str = "", figure: Any = None, alt: str = "", basis: str = "measured"
    ) -> None:
        """Shows the guess beside the measurement, and why it is so, in a fold.

        The fold is open if there is a guess, which can't be changed from then on, and closed in a
        notebook that is stored without one. After a wrong guess a sentence says why it tempts. So
        that no cell needs an assertion that answers its question, this compares what was measured
        with what the course says.

        Args:
            measured: The answer: one of the options, or a list with one of them.
            because: What explains it, in Markdown.
            figure: A matplotlib figure that shows it.
            alt: A sentence that says what the figure shows.
            basis: "measured" by this cell, or "recorded" by runs of which it reads the results.

        Raises:
            AssertionError: If the course says something else.
            ValueError: If it is none of the options.
        """
        answer = str(measured[0] if isinstance(measured, (list, tuple)) and len(measured) == 1 else measured)
        known = recorded().get(self._question, {})  # nothing of a question that isn't the course's
        if answer != (expected := known.get("answer", answer)):
            raise AssertionError(f"{basis} {answer!r}, but the course says {expected!r}: has the code been changed?")
        if answer not in self._options:
            raise ValueError(f"{basis} {answer!r}, which is none of the options {self._options}")
        self._widget.disabled = True
        self.right = self.choice == answer
        _count()
        if self.choice is None:
            color, text = ASK, f"{basis.title()}: {answer}."
        elif self.right:
            color, text = RIGHT, f"Right. You predicted “{self.choice}”, and that is what was {basis}."
        else:
            said = f"Not quite. You predicted “{self.choice}”; {basis}: {answer}. {known.get('why', '')}"
            color, text = WRONG, said.rstrip()
        course = {"kind": "reveal", "question": self._question, "measured": answer}
        course |= {"basis": basis} if basis != "measured" else {}
        if because:
            course |= {"because": dedent(because).strip()}
            show_fold(color, FOLDED if self.choice else MEASURED, text, figure, alt, course, bool(self.choice))
        else:
            show_html(box(color, with_code(text)), f"{FOLDED}\n{text}", course, head=FOLDED)


def predict(question: str, options: Sequence[Any]) -> Guess:
    """Asks for a prediction before an experiment.

    Asked again, as when its cell runs once more, it keeps a choice that hasn't been revealed; after
    that it starts afresh.

    Args:
        question: One sentence.
        options: Two or more different answers.

    Returns:
        A `Guess`; call its `reveal(measured)` when the experiment has run.

    Raises:
        ValueError: If there are fewer than two options, or two that are the same.

    Example:
        guess = predict("What does .grad hold after two passes?", ["the last one", "their sum"])
        guess.reveal("their sum")
    """
    options = [str(option) for option in options]
    if len(options) < 2 or len(set(options)) < len(options):
        raise ValueError(f"a prediction needs at least two different options, got {options}")
    asked = _guesses.get(question)
    waits = asked and asked.choice in options and not asked._widget.disabled  # as a reveal has it
    kept = asked.choice if waits else None
    choice = RadioButtons(options=options, value=kept, layout=Layout(width="auto"))
    title = f"<b>Predict:</b> {with_code(question)}"
    boxes = "".join(f"<div>&#9744; {with_code(option)}</div>" for option in options)
    text = "\n  [ ] ".join([f"Predict: {question}", *options])
    course = {"kind": "prediction", "question": question, "options": options}
    show_html(box(ASK, title + boxes), text, course, widget=VBox([HTML(title), choice]))
    return Guess(question, options, choice)


def tried(exercise: str, passed: bool) -> None:
    """Counts an exercise. What was once passed stays so."""
    _exercises[exercise] = passed or _exercises.get(exercise, False)
    _count()


def recall(*cards: tuple[str, str]) -> None:
    """Shows cards whose answers unfold, a box to tick for each, and the progress line.

    Args:
        cards: Pairs of question and answer.

    Example:
        recall(("What does zero_grad() leave by default?", "None, and no tensor."))
    """
    global _line
    html = [fold(escape(question), escape(answer), BOX.format(color=ASK)) for question, answer in cards]
    rows = []
    _cards.clear()
    for card in html:
        layout = Layout(width="7em", flex="0 0 auto", margin="0.5em 0 0 0")
        _cards.append(Checkbox(value=False, description="I knew it", indent=False, layout=layout))
        _cards[-1].observe(_count, names="value")
        rows.append(HBox([HTML(card, layout=Layout(flex="1 1 0%", min_width="0")), _cards[-1]]))
    text = "\n".join(f"Q: {question}\nA: {answer}" for question, answer in cards)
    show_html("".join(html), text, {"kind": "cards", "cards": [list(card) for card in cards]}, widget=VBox(rows))
    _line = HTML(box(ASK, _score()))
    show_html(_line.value, _score(), {"kind": "score"}, widget=_line)


def _count(*_: Any) -> None:
    """Updates the progress line, if there is one."""
    if _line is not None:
        _line.value = box(ASK, _score())


def _score() -> str:
    """One sentence that says how many of each kind there are, and how many were right."""
    right = sum(guess.right for guess in _guesses.values())
    passed, known = sum(_exercises.values()), sum(card.value for card in _cards)
    return (
        f"So far here: {right} of {len(_guesses)} predictions right, {passed} of {len(_exercises)} exercises passed, "
        f"{known} of {len(_cards)} cards known."
    )
