"""Parts of all exercises: registry, verdicts, the comparison of an answer with a solution.

An exercise is a function that runs an answer on its cases, and raises a `Mistake` for the first
thing that is wrong.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from reprlib import repr
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

NAMES = "Print the values that this line uses. Is each name spelled as in the cells above? Is each value as you expect?"
RTOL, ATOL = 1e-6, 1e-9  # a quotient of two counts that are tensors is a float32, whatever it is multiplied with


@dataclass(frozen=True)
class Verdict:
    """A judgement: `bug` names the class of the mistake, and is empty for a right answer."""

    bug: str
    message: str
    hint: str = ""  # what to look at next
    printed: str = field(default="", compare=False)  # by the answer, while it was judged

    @property
    def passed(self) -> bool:
        return not self.bug


class Mistake(Exception):
    """A bug of an answer.

    Args:
        bug: The name of its class.
        message: What was seen.
        hint: What to look at next, without giving the solution away.
    """

    def __init__(self, bug: str, message: str, hint: str = ""):
        super().__init__(message)
        self.verdict = Verdict(bug, message, hint)


def not_attempted(message: str) -> Mistake:
    hint = "Write your answer into this cell, then run it again: the verdict says what is still wrong."
    return Mistake("not-attempted", message, hint)


def wrong_type(message: str) -> Mistake:
    hint = "Read in the task what form the answer takes, and compare it with yours."
    return Mistake("wrong-type", " ".join(message.split()), hint)


EXERCISES: dict[str, "exercise"] = {}  # by name


@dataclass
class exercise:
    """The decorator that registers a function as the exercise of its name.

    The function runs an answer on its cases, and raises a `Mistake` for the first thing that is
    wrong.

    Args:
        says: What was tried, for an answer without a mistake; unless the function returns that.
        takes: What an answer is.
        praise: How the verdict on an answer without a mistake begins.
        extra: Seconds beyond the limit, where processes have to start.
    """

    says: str
    takes: Any = Callable
    praise: str = "Right."
    extra: float = 0.0

    def __call__(self, judge: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
        self.judge = judge
        EXERCISES[judge.__name__] = self
        return judge


# An answer beside a solution.

BY_HAND = "Take a small case, work it out by hand step by step, and compare every value on the way."
OWNED = "The caller owns what your function is given and uses it again. Which line of yours writes to it?"


def compare(watch: Callable, answer: Any, solution: Any, cases: Sequence, **mistakes: tuple[str, str]) -> None:
    """Raises a `Mistake` for the first thing in which an answer differs from a solution.

    Args:
        watch: Runs an answer on a case and returns what was seen, by its name.
        answer: The learner's.
        solution: A correct answer.
        cases: The cases that both are run on.
        **mistakes: The mistake that shows in a thing of this name, and its hint.
    """

    def seen(function: Any, case: Any) -> Mapping[str, Any]:
        torch.default_generator.manual_seed(1)
        return watch(function, case)

    right = [seen(solution, case) for case in cases]  # before an answer can have changed anything
    for case, want in zip(cases, right, strict=True):
        try:
            got = seen(answer, case)
            for name, value in want.items():
                same(name, got[name], value, *mistakes.get(name, ()))
        except Mistake as mistake:
            raise Mistake(mistake.verdict.bug, f"{mistake} Tried on {case}.", mistake.verdict.hint) from None
        except Exception as error:
            error.add_note(f". Tried on {case}.")
            raise


def same(what: str, got: Any, want: Any, bug: str = "wrong-value", hint: str = BY_HAND) -> None:
    """Raises a `Mistake` unless a value is as it should be.

    Args:
        what: The name of the value, for the message.
        got: The learner's value; one with a method `compare` compares itself.
        want: The correct one.
        bug: The mistake of a value that differs.
        hint: What to look at then.
    """
    if hasattr(want, "compare") and type(got) is type(want):
        got.compare(want)
    elif not agree(got, want):
        raise Mistake(bug, f"{what}: expected {shown(want):.300}, got {shown(got):.300}.", hint)


def unchanged(now: Any, before: Any) -> None:
    """Raises a `Mistake` if an answer has changed the tensors or numbers that it was given."""
    if not agree(now, before, 0.0, 0.0):
        raise Mistake("changed-input", "your function changed what it was given.", OWNED)


def on_paper(name: str, right: Mapping[str, Any], says: str, hint: str, *wrong: tuple[str, Mapping, str]) -> None:
    """Registers an exercise whose answer is numbers. A verdict doesn't say what they are.

    Args:
        name: The name of the exercise.
        right: By blank the correct number, or None.
        says: What is said of a correct answer.
        hint: For every mistake.
        *wrong: For each known mistake its name, its numbers where they are wrong, and how it comes
            about. Each is named with the numbers that it is the first to explain.
    """

    def judge(answer: Mapping) -> None:
        if empty := [blank for blank in right if answer.get(blank, ...) is ...]:
            raise not_attempted(f"nothing is written for {', '.join(empty)} yet.")
        got = {blank: None if answer[blank] is None else number(answer[blank], "a number or None") for blank in right}
        off = [blank for blank in right if not agree(got[blank], right[blank])]
        found = []
        for bug, numbers, how in (*wrong, ("wrong-value", got, "not right yet")):
            if explained := [blank for blank in off if blank in numbers and agree(got[blank], numbers[blank])]:
                wrote = " and ".join(f"{blank} = {shown(got[blank])}" for blank in explained)
                found.append((bug, f"{wrote}: {how}"))
                off = [blank for blank in off if blank not in explained]
        if found:
            raise Mistake(found[0][0], f"you wrote {'; '.join(says for _, says in found)}.", hint)

    judge.__name__ = name
    exercise(says, takes=dict)(judge)


def agree(got: Any, want: Any, rtol: float = RTOL, atol: float = ATOL) -> bool:
    """Whether two values agree: numbers and tensors up to rounding, and NaN with NaN only."""
    try:
        assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True, check_dtype=False)
    except AssertionError:
        return False
    except (TypeError, RuntimeError):  # not numbers
        return type(got) is type(want) and got == want
    return True


def shown(value: Any) -> str:
    """A value as messages show it."""
    value = value.flatten()[:8].tolist() if isinstance(value, Tensor) else value
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    return f"{value:.8g}" if isinstance(value, float) else str(value)


# What an answer returned.


def returned(value: object, what: str) -> Any:
    """The value that an answer returned, unless that is nothing; `what` is for the message.

    Of an iterator, a list of its first 1000 entries.
    """
    if value is None or value is Ellipsis:
        raise not_attempted(f"your function returned {value}; it should return {what}.")
    return list(islice(value, 1000)) if isinstance(value, Iterator) else value


def number(value: object, what: str = "a number") -> float:
    """The number that an answer returned, as a float; `what` is for the message."""
    returned(value, what)
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except Exception:
        raise wrong_type(f"expected {what}, got {repr(value)} ({type(value).__name__}).") from None


def numbers(got: object, expected: int, what: str) -> list[float]:
    """The numbers that an answer returned; `what` is for the message, `expected` their count."""
    got = returned(got, what)
    try:
        values = list(islice(got, expected + 100))
    except TypeError:
        raise wrong_type(f"expected {what}, got {repr(got)}.") from None
    if expected and not values:
        raise not_attempted(f"your function returned {got}; it should return {what}.")
    return [number(value) for value in values]


def truth(value: object) -> bool:
    """The True or False that an answer returned; a tensor or an array of one entry will do."""
    returned(value, "True or False")
    if isinstance(value, bool) or getattr(value, "shape", None) == ():
        return bool(value)
    raise wrong_type(f"expected True or False, got {repr(value)}.")
