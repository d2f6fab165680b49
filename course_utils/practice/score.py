"""What a learner has answered in a notebook, and how much of it was right: the numbers behind the progress line.

In JupyterLab and VS Code the score survives a restart, in a small file beside the notebook. Elsewhere, in Colab and
where notebooks are run by a program, it lasts as long as the kernel.
"""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_KINDS = ("choices", "compared", "exercises", "cards")


def score_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The file beside the notebook that this kernel runs; None where no person has opened one.

    Args:
        environment: Jupyter's server names the notebook in it; `COURSE_SCORE=off` asks for no file.
    """
    if environment.get("COURSE_SCORE") == "off" or "COLAB_RELEASE_TAG" in environment:
        return None
    name = environment.get("JPY_SESSION_NAME") or vars(sys.modules["__main__"]).get("__vsc_ipynb_file__")
    notebook = Path(name or "")
    return notebook.with_name(f".{notebook.stem}.score.json") if notebook.suffix == ".ipynb" else None


class Score:
    """Counts predictions, exercises and cards. A prediction starts over when its cell is run again.

    Args:
        file: Where it is kept when the kernel ends. One that cannot be read or written is left alone.
    """

    def __init__(self, file: Path | None = None):
        self._file = file
        self._kept = _read(file)  # of earlier kernels; an entry counts when its cell has been run in this one
        self._choices: dict[str, str | None] = {}  # the option that is chosen in each prediction
        self._compared: dict[str, bool | None] = {}  # right or not, None if it was revealed without a choice
        self._exercises: dict[str, bool | None] = {}  # passed or not, None until it is tried
        self._cards: dict[str, bool] = {}  # known or not

    def ask(self, question: str) -> str | None:
        """A prediction is asked for. Returns the choice of an earlier kernel, if there is one."""
        self._compared.pop(question, None)
        choice = self._kept["choices"].pop(question, None)
        self._choices[question] = choice
        if choice is not None and question in self._kept["compared"]:
            self._compared[question] = self._kept["compared"].pop(question)
        return choice

    def choose(self, question: str, option: str | None) -> None:
        """A choice counts until what was measured is shown."""
        if question not in self._compared:
            self._choices[question] = option
            self._keep()

    def compare(self, question: str, choice: str | None, right: bool) -> bool:
        """What was measured is shown beside a choice, or without one. Returns whether the choice was made before."""
        if question not in self._compared:
            self._compared[question] = None if choice is None else right
            self._keep()
        return self._choices.get(question) == choice

    def judge(self, exercise: str, tried: bool, passed: bool) -> None:
        """An exercise has been judged. What was once passed stays so."""
        before = self._exercises.get(exercise, self._kept["exercises"].get(exercise))
        self._exercises[exercise] = bool(before) or passed if tried else before
        self._keep()

    def deal(self, questions: list[str]) -> list[bool]:
        """Cards have been laid out, instead of those that lay there before. Returns which were known before."""
        self._cards = {question: self._kept["cards"].pop(question, False) for question in questions}
        return list(self._cards.values())

    def know(self, question: str, known: bool) -> None:
        self._cards[question] = known
        self._keep()

    def text(self) -> str:
        """One sentence that says how many of each kind there are, were answered and were right."""
        exercises, cards = self._exercises, self._cards
        made = [question for question, choice in self._choices.items() if choice is not None]
        tried = [passed for passed in exercises.values() if passed is not None]
        if not (made or tried or any(cards.values())):
            kinds = {"prediction": self._choices, "exercise": exercises, "card": cards}
            waiting = (f"{len(some)} {kind}{'s' * (len(some) != 1)}" for kind, some in kinds.items())
            return f"Nothing is answered here yet. Waiting for you: {', '.join(waiting)}."
        return (
            f"So far here: predictions {sum(bool(self._compared.get(question)) for question in made)} right of "
            f"{len(made)} made ({len(self._choices)} asked); exercises {sum(tried)} passed of {len(tried)} tried "
            f"({len(exercises)} set); cards {sum(cards.values())} known of {len(cards)}."
        )

    def _keep(self) -> None:
        """Writes the file, with what earlier kernels kept and no cell of this one has replaced."""
        if self._file is None:
            return
        now = dict(zip(_KINDS, (self._choices, self._compared, self._exercises, self._cards), strict=True))
        for kind, entries in now.items():
            now[kind] = self._kept[kind] | {name: entry for name, entry in entries.items() if entry is not None}
        with suppress(OSError):
            unfinished = self._file.with_name(f"{self._file.name}.{os.getpid()}")
            unfinished.write_text(json.dumps(now), encoding="utf-8")
            unfinished.replace(self._file)


def _read(file: Path | None) -> dict[str, dict]:
    """What a file has kept; nothing if it cannot be read."""
    found = {}
    with suppress(OSError, ValueError):
        found = json.loads(file.read_text(encoding="utf-8")) if file else {}
    return {kind: found.get(kind, {}) for kind in _KINDS}
