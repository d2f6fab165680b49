"""Exercises of the kind "on paper": the learner writes numbers, and each known slip gives a number of its own."""

from collections.abc import Iterable, Mapping
from numbers import Number
from typing import Any, NamedTuple

from torch import Tensor

from course_utils.practice.judging import Mistake, close, number


class Slip(NamedTuple):
    """A slip that people make on paper, and the numbers that it leads to."""

    bug: str
    hint: str
    gives: Mapping[str, Any]  # for some of the blanks: the number, or a function that says whether it leads to one


def judge_numbers(answer: Mapping, want: Mapping[str, float | None], slips: Iterable[Slip]) -> None:
    """Compares what a learner has written on paper with what is correct, blank by blank.

    Args:
        answer: What the learner wrote for each blank: a number, None, or `...` where nothing is written yet.
        want: What is correct for each blank.
        slips: The slips to look for. The one that explains most of the wrong numbers is named, the earlier of equals.

    Raises:
        Mistake: `not-attempted` while nothing is written, `unfinished` while something is missing, `wrong-type`, the
            name of a slip, or `wrong-value`.
    """
    if strangers := [key for key in answer if key not in want]:
        raise Mistake("wrong-type", f"there is no blank {strangers[0]!r}, only {', '.join(map(repr, want))}.")
    empty = [blank for blank in want if answer.get(blank, ...) is ...]
    if len(empty) == len(want):
        raise Mistake("not-attempted", f"nothing is written for {', '.join(want)} yet.")
    if empty:
        raise Mistake("unfinished", f"nothing is written for {', '.join(empty)} yet.")
    wrong = {blank: _read(answer[blank]) for blank in want if not _agree(_read(answer[blank]), want[blank])}
    if not wrong:
        return
    best, explained = None, []
    for slip in slips:
        blanks = [blank for blank, got in wrong.items() if blank in slip.gives and _leads_to(slip.gives[blank], got)]
        if len(blanks) > len(explained):
            best, explained = slip, blanks
    if best:
        values = " and ".join(f"{blank} = {_shown(wrong[blank])}" for blank in explained)
        raise Mistake(best.bug, f"{values}: {best.hint}.")
    raise Mistake("wrong-value", f"{', '.join(f'{blank} = {_shown(got)}' for blank, got in wrong.items())}.")


def _read(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Number | Tensor | str):
        raise Mistake("wrong-type", f"expected a number or None, got {value!r}.")
    return number(value)


def _leads_to(gives: Any, got: float | None) -> bool:
    return gives(got) if callable(gives) else _agree(got, gives)


def _agree(got: float | None, want: float | None) -> bool:
    return got is want if got is None or want is None else close(got, want)


def _shown(value: float | None) -> str:
    return "None" if value is None else f"{value:g}"
