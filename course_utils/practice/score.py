"""What a learner has answered in a notebook, and how much of it was right: the numbers behind the progress line."""


class Score:
    """Counts predictions, exercises and cards. A prediction starts over when its cell is run again."""

    def __init__(self):
        self._predictions: dict[str, bool | None] = {}  # right or not, None until it is compared
        self._chosen: set[str] = set()
        self._exercises: dict[str, bool | None] = {}  # passed or not, None until it is tried
        self._cards: dict[str, bool] = {}  # known or not

    def ask(self, question: str) -> None:
        self._predictions[question] = None
        self._chosen.discard(question)

    def choose(self, question: str) -> None:
        self._chosen.add(question)

    def compare(self, question: str, right: bool) -> None:
        """A choice has been compared with what was measured. Only the first comparison counts."""
        if self._predictions.get(question) is None:
            self._predictions[question] = right

    def judge(self, exercise: str, tried: bool, passed: bool) -> None:
        """An exercise has been judged. What was once passed stays so."""
        if not tried:
            self._exercises.setdefault(exercise, None)
        else:
            self._exercises[exercise] = bool(self._exercises.get(exercise)) or passed

    def deal(self, questions: list[str]) -> None:
        """Cards have been laid out, instead of those that lay there before."""
        self._cards = dict.fromkeys(questions, False)

    def know(self, question: str, known: bool) -> None:
        self._cards[question] = known

    def text(self) -> str:
        """One sentence that says how many of each kind there are, were answered and were right."""
        predictions, exercises, cards = self._predictions, self._exercises, self._cards
        made = self._chosen | {question for question, right in predictions.items() if right is not None}
        tried = [passed for passed in exercises.values() if passed is not None]
        if not (made or tried or any(cards.values())):
            kinds = {"prediction": predictions, "exercise": exercises, "card": cards}
            waiting = (f"{len(some)} {kind}{'s' * (len(some) != 1)}" for kind, some in kinds.items())
            return f"Nothing answered yet here. Waiting for you: {', '.join(waiting)}."
        return (
            f"So far here: predictions {sum(map(bool, predictions.values()))} right of {len(made)} made "
            f"({len(predictions)} asked); exercises {sum(tried)} passed of {len(tried)} tried ({len(exercises)} set); "
            f"cards {sum(cards.values())} known of {len(cards)}."
        )
