"""The old form of an exercise, which goes: a declaration, with known mistakes as edits of the solution."""

import inspect
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Any, NamedTuple

import torch

from course_utils import data
from course_utils.exercises import judging
from course_utils.exercises.judging import (  # noqa: F401
    RTOL,
    Mistake,
    Seen,
    Verdict,
    changed,
    number,
    numbers,
    read_all,
    returned,
    shown,
    truth,
)
from course_utils.source import edited, function


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


def agree(got: Any, want: Any, rtol: float = RTOL, atol: float = 1e-9) -> bool:
    if hasattr(want, "difference"):
        return type(got) is type(want) and got.agrees(want, rtol)
    return not _mistake(got, want, rtol) if hasattr(want, "compare") else judging.agree(got, want, rtol, atol)


def _mistake(got: Any, want: Any, rtol: float) -> Any:
    try:
        if type(got) is not type(want):
            return True
        got.compare(want, rtol)
    except Mistake as mistake:
        return mistake.verdict


def difference(what: str, got: Any, want: Any) -> tuple[str, str]:
    if hasattr(want, "difference") and type(got) is type(want):
        return got.difference(want)
    if hasattr(want, "compare") and type(got) is type(want):
        verdict = _mistake(got, want, RTOL)
        return verdict.bug.replace("wrong-value", ""), verdict.message.rstrip(".")
    if what == "input":
        return "", f"all else is right, but {got}"
    return "", f"{what}: expected {shown(want):.300}, got {shown(got):.300}"


def blanks(answer: Mapping, want: Mapping) -> Seen:
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

    found = [Edit(bug, "", wrong) for bug, wrong in mistakes]
    return Exercise(name, notebook, watch, solution, edits=found, takes=dict)
