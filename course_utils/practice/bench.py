"""The one bench on which every exercise is judged.

An exercise is a declaration: a solution, the cases that it is run on, what is watched while it runs, and known mistakes
as edits of the solution. The bench runs an answer and the solution on the same case and compares what was seen, channel
by channel. A difference gets the name of the edit that explains most of it; else the one that the channel itself finds
in the difference; else `wrong-value`, with the numbers.
"""

import inspect
import math
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from numbers import Number
from reprlib import repr
from types import UnionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_utils import data
from course_utils.source import edited, function

RTOL, ATOL = 1e-6, 1e-9  # a quotient of two counts that are tensors is a float32, whatever it is multiplied with

Seen = Mapping[str, Any]  # what was seen of an answer, by channel, in the order in which the channels are compared


@dataclass(frozen=True)
class Verdict:
    """What a judge found: `bug` names the class of the mistake, and is empty when the answer is right."""

    bug: str
    message: str
    hint: str = ""  # what to look at next
    printed: str = field(default="", compare=False)  # by the answer, while it was judged

    @property
    def passed(self) -> bool:
        return not self.bug


class Mistake(Exception):
    """The answer has a bug; raised with the bug's name and how it shows."""

    def __init__(self, bug: str, message: str):
        self.verdict = Verdict(bug, message)


class Edit(NamedTuple):
    """A mistake, made by an edit of the solution's source: `old` stands there once and becomes `new` (see `edited`).

    On paper `new` are the numbers that are wrong, by blank, and there is no `old`.
    `bug` is its name in `data/mistakes.toml`; where one mistake comes about in several ways, a slash and a word follow.
    """

    bug: str
    old: str
    new: Any


def edits(bug: str, old: str, *new: str) -> list[Edit]:
    """One mistake that people make in several ways."""
    return [Edit(bug, old, each) for each in new]


# The mistake that shows in a channel which says nothing more exact itself.
CHANNELS = {"input": "changed-input", "schedule": "scheduler-cadence", "scale": "scaler-timing"}


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Args:
        name: The name by which `check` finds it.
        notebook: The notebook that sets it.
        watch: Runs an answer on a case and returns what was seen.
        solution: A correct answer, a function or a text, of which `edits` are made. Without one, `watch` judges by
            itself, and returns under `passed` what was tried.
        cases: What the answers are run on, one after the other.
        edits: The known mistakes, the likelier ones first.
        channels: The name of the mistake that shows in a channel.
        takes: What an answer is: a function, unless this says otherwise.
        praise: How the verdict on an answer without a mistake begins.
        extra: Seconds beyond the limit, where processes have to start.
        rtol: The relative tolerance.
    """

    name: str
    notebook: str
    watch: Callable[[Any, Any], Seen]
    solution: Any = None
    cases: Sequence = (None,)
    edits: Sequence[Edit] = ()
    channels: Mapping[str, str] = field(default_factory=dict)
    takes: type | UnionType = Callable
    praise: str = "Right."
    extra: float = 0.0
    rtol: float = RTOL
    kept: dict[tuple, Any] = field(default_factory=dict)  # what was seen of the solution and its edits in each case

    @property
    def hints(self) -> dict[str, str]:
        """By the name of a mistake, what this exercise hints at instead of the general hint."""
        return {bug: said["hint"] for bug, said in _mistakes().get(self.name, {}).items() if "hint" in said}

    def hint(self, bug: str) -> str:
        """What helps a learner whose answer has this mistake, without giving the solution away."""
        return self.hints.get(bug) or _mistakes()["general"].get(bug, {}).get("hint", "")

    def named(self, bug: str, shown: str) -> tuple[str, str]:
        """A mistake's name, and a message that shows it and says how it comes about."""
        says = _mistakes().get(self.name, {}).get(bug, {}).get("says", "")
        shown = shown.rstrip(".: ")  # an error's message may end with a full stop, or be empty
        return bug.partition("/")[0], f"{shown}: {says}." if says else f"{shown}."

    def judge(self, answer: Any) -> str:
        """Compares an answer with the solution. Returns what was tried.

        Raises:
            Mistake: The first case in which they differ, and the mistake's name.
        """
        if self.solution is None:
            return self.seen(answer, None)["passed"]
        for case in self.cases:
            want = self.seen_of(None, case)
            try:
                got = self.seen(answer, case)
            except Exception as error:
                alike = [
                    edit for edit in self.edits if self.seen_of(edit, case).get("error") == (type(error), str(error))
                ]
                if alike and not isinstance(error, Mistake):
                    raise Mistake(*self.named(alike[0].bug, f"{type(error).__name__}: {error}")) from error
                raise
            differ = [what for what in want if not agree(got.get(what), want[what], self.rtol)]
            if differ:
                bug, message = self.explain(got, want, differ, case)
                raise Mistake(bug, f"{case}: {message}" if case else message)
        return _mistakes()["passed"][self.name]

    def seen(self, answer: Any, case: Any) -> Seen:
        torch.default_generator.manual_seed(1)
        return self.watch(answer, case)

    def made(self, edit: Edit | None) -> Any:
        """The solution, or the solution with a mistake."""
        if edit is None:
            return self.solution
        if self.takes is dict:
            return self.solution() | edit.new
        if isinstance(self.solution, str):
            return edited(self.solution, edit.old, edit.new)
        return function(edited(inspect.getsource(self.solution), edit.old, edit.new), self.solution.__globals__)

    def seen_of(self, edit: Edit | None, case: Any) -> Seen:
        """What is seen of the solution, or of a known mistake; it is run once."""
        key = id(edit), id(case)
        if key not in self.kept:
            with warnings.catch_warnings(action="ignore"):
                try:
                    self.kept[key] = self.seen(self.made(edit), case)
                except Exception as error:
                    if edit is None:
                        raise
                    self.kept[key] = {"error": (type(error), str(error))}
        return self.kept[key]

    def explain(self, got: Seen, want: Seen, differ: list[str], case: Any) -> tuple[str, str]:
        """The name of the mistake, and how it shows."""

        def explained(edit: Edit) -> list[str]:
            return [what for what in differ if agree(got.get(what), self.seen_of(edit, case).get(what))]

        first = differ[0]
        bug, says = difference(first, got.get(first), want[first])
        if self.takes is dict:  # it doesn't say what is right
            says = " and ".join(f"{blank} = {shown(got[blank])}" for blank in differ)
        likely = [edit for edit in self.edits if bug != "not-attempted" and first in explained(edit)]
        if likely:
            return self.named(max(likely, key=lambda edit: len(explained(edit))).bug, says)
        if bug:
            return bug, f"{says}."
        return self.named({**CHANNELS, **self.channels}.get(first, "wrong-value"), says)


@cache
def _mistakes() -> dict[str, dict[str, str]]:
    return tomllib.loads((data.folder() / "mistakes.toml").read_text(encoding="utf-8"))


def agree(got: Any, want: Any, rtol: float = RTOL, atol: float = ATOL) -> bool:
    """Whether two things that were seen agree: numbers and tensors up to rounding, and NaN with NaN only."""
    if hasattr(want, "agrees"):
        return type(got) is type(want) and got.agrees(want, rtol)
    if isinstance(want, Tensor):
        same_shape = isinstance(got, Tensor) and got.shape == want.shape
        return same_shape and torch.allclose(got.to(want), want, rtol=rtol, atol=atol, equal_nan=True)
    if isinstance(want, (list, tuple)):
        same_length = isinstance(got, (list, tuple)) and len(got) == len(want)
        return same_length and all(agree(g, w, rtol, atol) for g, w in zip(got, want, strict=True))
    if isinstance(want, bool) or not isinstance(want, Number) or not isinstance(got, Number):
        return type(got) is type(want) and got == want
    if math.isfinite(got - want):
        return abs(got - want) <= atol + rtol * abs(want)
    return got == want or (math.isnan(got) and math.isnan(want))


def difference(what: str, got: Any, want: Any) -> tuple[str, str]:
    """How two things that were seen differ, in words, and the mistake that this shows, if it shows one."""
    if hasattr(want, "difference") and type(got) is type(want):
        return got.difference(want)
    if what == "input":
        return "", f"all else is right, but {got}"
    return "", f"{what}: expected {shown(want):.300}, got {shown(got):.300}"


def shown(value: Any) -> str:
    """A value as messages show it."""
    if isinstance(value, Tensor):
        return shown(value.flatten()[:8].tolist())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    return f"{value:.8g}" if isinstance(value, float) else str(value)


# What an answer returned.


def read_all(result: object, at_most: int) -> object:
    """What an answer returned; of a generator, which runs only when it is read, at most so many entries."""
    try:
        entries = iter(result)
    except TypeError:
        return result
    return result if isinstance(result, (str, bytes, dict, set)) else list(islice(entries, at_most))


def returned(value: object, what: str) -> Any:
    """What an answer returned, unless that is nothing; `what` says what it should return."""
    if value is None or value is Ellipsis:
        raise Mistake("not-attempted", f"your function returned {value}; it should return {what}.")
    return value


def number(value: object) -> float:
    """The number that an answer returned, as a float."""
    returned(value, "a number")
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except Exception:
        raise Mistake("wrong-type", f"expected a number, got {repr(value)} ({type(value).__name__}).") from None


def numbers(got: object, expected: int, what: str) -> list[float]:
    """The list of numbers that an answer returned; `what` says what it should return, `expected` how many of them."""
    got = read_all(returned(got, what), expected + 100)
    if got == [] and expected:
        raise Mistake("not-attempted", f"your function returned []; it should return {what}.")
    if not isinstance(got, list):
        raise Mistake("wrong-type", f"expected {what}, got {repr(got)}.")
    return [number(value) for value in got]


def truth(value: object) -> bool:
    """The True or False that an answer returned; a tensor or an array of one entry will do."""
    returned(value, "True or False")
    if isinstance(value, bool) or getattr(value, "shape", None) == ():
        return bool(value)
    raise Mistake("wrong-type", f"expected True or False, got {repr(value)}.")


def changed(now: Any, before: Any) -> str:
    """How the answer changed tensors that it was given, in lists and tuples; empty if it did not."""
    if isinstance(before, (list, tuple)):
        if not isinstance(now, (list, tuple)) or len(now) != len(before):
            left = len(now) if isinstance(now, (list, tuple)) else "no"
            return f"what your function was given has {left} entries afterwards instead of {len(before)}"
        return next(filter(None, map(changed, now, before)), "")
    return "" if agree(now, before, 0.0, 0.0) else "your function changed it in place"


def blanks(answer: Mapping, want: Iterable[str]) -> Seen:
    """What a learner wrote on paper, by blank: a number, None, or `...` where nothing is written yet."""
    empty = [blank for blank in want if answer.get(blank, ...) is ...]
    if empty:
        bug = "not-attempted" if len(empty) == len(list(want)) else "unfinished"
        raise Mistake(bug, f"nothing is written for {', '.join(empty)} yet.")
    return {blank: None if answer[blank] is None else number(answer[blank]) for blank in want}


def on_paper(name: str, notebook: str, solution: Callable, *mistakes: tuple[str, dict]) -> Exercise:
    """An exercise in which the learner writes numbers, for the blanks of which the solution has the correct ones."""

    def watch(answer: Any, _: None) -> Seen:
        return blanks(answer() if callable(answer) else answer, solution())

    found = [Edit(bug, "", numbers) for bug, numbers in mistakes]
    return Exercise(name, notebook, watch, solution, edits=found, takes=dict)
