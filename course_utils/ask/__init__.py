"""The interactive parts of a notebook: predictions, recall cards, the progress line.

Each shows a widget where a kernel is live and the same in plain HTML where none is (on GitHub, in
print), never the text of a widget, and describes itself in JSON.
"""

from collections.abc import Sequence
from html import escape
from textwrap import dedent
from typing import Any

from ipywidgets import HTML, Checkbox, HBox, Layout, RadioButtons, VBox

from course_utils.ask.display import (
    ASK,
    RIGHT,
    WRONG,
    as_image,
    as_static,
    box,
    folded,
    show_below,
    show_fold,
    show_widget,
    with_code,
)
from course_utils.ask.predictions import known, why

FOLDED = "Your prediction"  # what shows of a reveal where the cell's outputs are folded
MEASURED = "What was measured, and why"  # what shows of one that explains itself

# What has been asked in this kernel, for the progress line.
_guesses: "dict[str, Guess]" = {}  # by question
_exercises: dict[str, bool | None] = {}  # passed or not, None until it is tried
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
        expected = known(self._question) or answer
        if answer != expected:
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
            said = f"Not quite. You predicted “{self.choice}”; {basis}: {answer}. {why(self._question)}"
            color, text = WRONG, said.rstrip()
        course = {"kind": "reveal", "question": self._question, "measured": answer}
        course |= {"basis": basis} if basis != "measured" else {}
        if not because:
            show_below(FOLDED, color, text, course)
            return
        course |= {"because": dedent(because).strip()}
        image = as_image(figure, alt) if figure else ""
        shown = "\n\n".join(part for part in (f"<p>{with_code(text)}</p>", image, course["because"]) if part)
        show_fold(MEASURED if self.choice is None else FOLDED, color, shown, self.choice is not None, course)


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
    show_widget(
        VBox([HTML(title), choice]),
        as_static(
            box(ASK, title + boxes),
            "\n  [ ] ".join([f"Predict: {question}", *options]),
            {"kind": "prediction", "question": question, "options": options},
        ),
    )
    return Guess(question, options, choice)


def tried(exercise: str, passed: bool | None) -> None:
    """Counts an exercise; None if it was not tried. What was once passed stays so."""
    if passed is not None or exercise not in _exercises:
        _exercises[exercise] = _exercises.get(exercise) or passed
    _count()


def recall(*cards: tuple[str, str]) -> None:
    """Shows cards whose answers unfold, a box to tick for each, and the progress line.

    Args:
        cards: Pairs of question and answer.

    Example:
        recall(("What does zero_grad() leave by default?", "None, and no tensor."))
    """
    global _line
    html = [folded(question, answer) for question, answer in cards]
    _cards.clear()
    rows = []
    for card in html:
        layout = Layout(width="7em", flex="0 0 auto", margin="0.5em 0 0 0")
        _cards.append(Checkbox(value=False, description="I knew it", indent=False, layout=layout))
        _cards[-1].observe(_count, names="value")
        rows.append(HBox([HTML(card, layout=Layout(flex="1 1 0%", min_width="0")), _cards[-1]]))
    text = "\n".join(f"Q: {question}\nA: {answer}" for question, answer in cards)
    kind = {"kind": "cards", "cards": [list(card) for card in cards]}
    show_widget(VBox(rows), as_static("".join(html), text, kind))
    _line = HTML(_score_html())
    show_widget(_line, as_static(_score_html(), _score(), {"kind": "score"}))


def _count(*_: Any) -> None:
    """Updates the progress line, if there is one."""
    if _line is not None:
        _line.value = _score_html()


def _score_html() -> str:
    return box(ASK, escape(_score()))


def _score() -> str:
    """One sentence that says how many of each kind there are, were answered and were right."""
    made = [guess for guess in _guesses.values() if guess.choice is not None]
    tried = [passed for passed in _exercises.values() if passed is not None]
    known = sum(card.value for card in _cards)
    if not (made or tried or known):
        kinds = {"prediction": _guesses, "exercise": _exercises, "card": _cards}
        waiting = (f"{len(some)} {kind}{'s' * (len(some) != 1)}" for kind, some in kinds.items())
        return f"Nothing is answered here yet. Waiting for you: {', '.join(waiting)}."
    return (
        f"So far here: predictions {sum(guess.right for guess in made)} right of {len(made)} made "
        f"({len(_guesses)} asked); exercises {sum(tried)} passed of {len(tried)} tried ({len(_exercises)} set); "
        f"cards {known} known of {len(_cards)}."
    )
