"""Exercises of the kind "read the ledger": figures of real records, and loops of which the learner finds the one."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from course_utils.practice.judging import Mistake, close
from course_utils.practice.recording import quick_records
from course_utils.recording import record
from gradaudit.observe.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIDDLES: dict[str, "Riddle"] = {}


class Riddle:
    """Loops, by letter, and the figures that some of them made.

    Args:
        name: The name of the exercise.
        loops: By its letter, each loop that may have made a figure.
        shown: The letters of the loops that made the figures, in the order of the figures.
        run: Runs one of the loops; it is recorded meanwhile.
    """

    def __init__(self, name: str, loops: Mapping[str, Callable], shown: str, run: Callable[[Callable], object]):
        self.loops, self._shown, self._run = loops, shown, run
        self._traces: dict[str, Trace] = {}
        RIDDLES[name] = self

    def trace(self, letter: str) -> Trace:
        """What `record()` sees of a loop, which runs once."""
        if letter not in self._traces:
            with quick_records(), record() as trace:
                self._run(self.loops[letter])
            self._traces[letter] = trace
        return self._traces[letter]

    def figure(self, number: int, title: str = "") -> "Figure":
        """One of the ledgers to be read.

        Args:
            number: Which one, counted from 1.
            title: What is written above it.
        """
        from course_utils.plots import ledger

        return ledger(self.trace(self._shown[number - 1]), title=title or f"Ledger {number}")

    def compare(self, answer: Iterable[str]) -> None:
        """Compares the records of the loops that a learner names with those of the figures, one by one.

        Args:
            answer: A letter for each figure, in their order.

        Raises:
            Mistake: `too-few` or `too-many` letters; `swapped`; or how the first wrong record differs: in `order` of
                the events, in what its `windows` hold, or in the `heights`.
        """
        answer = "".join(answer)
        for bug, differs in (("too-few", len(answer) < len(self._shown)), ("too-many", len(answer) > len(self._shown))):
            if differs:
                raise Mistake(bug, f"write {len(self._shown)} letters, one for each ledger; you wrote {len(answer)}.")
        records = {letter: self.trace(letter) for letter in {*answer, *self._shown}}
        wrong = [number for number, letters in enumerate(zip(answer, self._shown, strict=True), start=1)
                 if _difference(*(records[letter] for letter in letters))]  # fmt: skip
        if wrong and answer == self._shown[::-1]:
            raise Mistake("swapped", "each of these loops made one of the ledgers, but another one than you say.")
        for number in wrong:
            letter = answer[number - 1]
            bug, hint = _difference(records[letter], records[self._shown[number - 1]])
            raise Mistake(bug, f"ledger {number} is not of loop {letter}: {hint}.")


def riddle(name: str) -> Riddle:
    """The loops and figures of an exercise, by its name."""
    from course_utils.practice import exercises  # noqa: F401  its modules fill RIDDLES

    return RIDDLES[name]


def _difference(named: Trace, shown: Trace) -> tuple[str, str] | None:
    """How the record of the loop that a learner names differs from that of a figure, in words about the former."""
    steps, held = len(named.windows()), named.windows()
    if steps != len(shown.windows()):
        return "other-steps", f"it steps {steps} times. Count the steps in the ledger"
    if held != shown.windows():
        return "other-windows", f"its steps use the gradients of {held} micro-batches. Count the rises before each step"
    if [event.kind for event in named.events] != [event.kind for event in shown.events]:
        return "other-order", "its updates hold as many micro-batches, but the same things do not happen in between"
    if not close([event.norm for event in named.events], [event.norm for event in shown.events]):
        return "other-heights", "the same happens in the same order, but read the heights on the axis"
    return None
