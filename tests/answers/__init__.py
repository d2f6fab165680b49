"""Right and wrong answers to the exercises, in modules by notebook: nb02_zeroing.py holds those of 02_zeroing.

Every function that is decorated in these modules is judged by tests/practice/test_answers.py; answers of other kinds,
such as texts, are passed to the decorator: `right("order_the_lines")("C F G B D")`. The notebooks' own solutions need
not be repeated: they are read from their cells.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple


class Wrong(NamedTuple):
    """A wrong answer, the name of its bug, and words that the message must contain."""

    answer: Callable
    bug: str
    sources: tuple[str, ...]
    says: str


class Outcomes(NamedTuple):
    """How an answer's results are found without its judge, and a function that is known to give the right ones."""

    calls: Callable[[Callable], Iterator[Callable]]
    reference: Callable | None
    mutants: int
    mutate: tuple[Callable, ...]


RIGHT: dict[str, list[Callable]] = {}
WRONG: dict[str, list[Wrong]] = {}
OUTCOMES: dict[str, Outcomes] = {}


def right(*exercises: str) -> Callable:
    """The decorated function is a right answer to each of these exercises."""

    def keep(answer: Callable) -> Callable:
        for exercise in exercises:
            RIGHT.setdefault(exercise, []).append(answer)
        return answer

    return keep


def wrong(exercise: str, bug: str, *sources: str, says: str = "") -> Callable:
    """The decorated function must be rejected by the name of its bug.

    Args:
        exercise: The exercise that it answers.
        bug: The name that its verdict must give.
        sources: Public code that had this bug; `owner/repo#n` is an issue, `owner/repo!n` a pull request.
        says: Words that the verdict's message must contain.
    """

    def keep(answer: Callable) -> Callable:
        WRONG.setdefault(exercise, []).append(Wrong(answer, bug, sources, says))
        return answer

    return keep


def outcomes(
    exercise: str, reference: Callable | None = None, mutants: int = 3, mutate: Sequence[Callable] = ()
) -> Callable:
    """The decorated generator takes an answer and yields calls, each of which gives a list of numbers.

    These decide, without the judge, whether a small change to the notebook's solution changes a result.

    Args:
        exercise: The exercise that is answered.
        reference: A function with which all right answers, and the solution, must agree in all outcomes.
        mutants: How many mutants of the solution there must be at least.
        mutate: Right answers that are changed as well as the solution.
    """

    def keep(calls: Callable) -> Callable:
        OUTCOMES[exercise] = Outcomes(calls, reference, mutants, tuple(mutate))
        return calls

    return keep


for _path in sorted(Path(__file__).parent.glob("nb*.py")):
    import_module(f"{__name__}.{_path.stem}")
