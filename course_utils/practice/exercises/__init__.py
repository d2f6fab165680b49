"""The exercises, in modules by notebook: every `Exercise` that a module beside this one declares is found here."""

import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path
from reprlib import repr
from types import TracebackType
from typing import Any

import torch

from course_utils.practice.bench import Exercise, Mistake, Verdict
from course_utils.practice.deadline import Outcome, line_of, place, run

EXERCISES: dict[str, Exercise] = {}  # by name
MOST = 100_000  # characters of what an answer prints


def judge(name: str, answer: Any, limit: float = 20.0) -> Verdict:
    """Judges a learner's solution of an exercise. Whatever the solution raises becomes part of the verdict.

    Args:
        name: The name of the exercise.
        answer: The learner's function, or what the exercise takes instead of one.
        limit: Seconds after which the answer is stopped; the bug is then called `endless`.

    Returns:
        The verdict, with a hint if the answer is not right, and with what the answer printed.

    Raises:
        ValueError: If no exercise has this name.

    Example:
        >>> judge("slope", lambda f, w, h: (f(w + h) - f(w - h)) / (2 * h)).passed
        True
    """
    if name not in EXERCISES:
        raise ValueError(f"no exercise is called {name!r}; there are {', '.join(EXERCISES)}")
    found = EXERCISES[name]
    if isinstance(answer, found.takes):
        verdict = _judged(found, answer, limit + found.extra)
    else:
        bug = "not-a-function" if found.takes is Callable else "wrong-type"
        verdict = Verdict(bug, f"expected {_named(found.takes)}, got {repr(answer)} ({type(answer).__name__}).")
    return replace(verdict, hint="" if verdict.passed else found.hint(verdict.bug))


def _judged(found: Exercise, answer: Any, limit: float) -> Verdict:
    printed, dtype = _Printed(), torch.get_default_dtype()
    with (
        torch.random.fork_rng(devices=()),
        warnings.catch_warnings(),
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        warnings.simplefilter("always")
        warnings.showwarning = partial(_note, printed)
        torch.default_generator.manual_seed(1)
        torch.set_default_dtype(torch.float64)  # as the notebooks' set-up does; in bfloat16 no tolerance would hold
        outcome = run(lambda: found.judge(answer), limit)
    torch.set_default_dtype(dtype)
    return replace(_verdict(outcome, limit), printed=printed.getvalue())


class _Printed(StringIO):
    """Keeps the beginning of what is printed: a loop that prints would fill the memory."""

    def write(self, text: str) -> int:
        return super().write(text[: max(0, MOST - self.tell())])


def _note(printed: _Printed, message: Warning | str, category: type[Warning], *_: Any) -> None:
    """Keeps a warning once if the learner's code has caused it, such as PyTorch's of a scheduler that steps first."""
    said = f"{category.__name__}: {message}\n"
    if said not in printed.getvalue() and line_of(sys._getframe(1)):
        printed.write(said)


def _names_at(traceback: TracebackType | None) -> dict[str, Any]:
    """The global names where an exception was raised."""
    while traceback and traceback.tb_next:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_globals if traceback else {}


def _verdict(outcome: Outcome, limit: float) -> Verdict:
    error = outcome.error
    where = outcome.where or place(error and error.__traceback__)
    if outcome.stopped:
        bug, what = "endless", f"stopped: it was still running after {limit:g} second{'s' * (limit != 1)}"
        if outcome.stopped == "interrupted":
            bug, what = "interrupted", "stopped by you"
        later = " It is in a call that Python cannot interrupt, and ends when that call returns."
        return Verdict(bug, what + (f", in {where}." if where else ".") + later * outcome.goes_on)
    if error is None:
        return Verdict("", outcome.value)
    if isinstance(error, Mistake) and error.verdict.bug != "raises":
        return error.verdict
    cause = error.__cause__ if isinstance(error, Mistake) and error.__cause__ else error
    where = place(cause.__traceback__)
    if isinstance(cause, NameError) and "torch" not in _names_at(cause.__traceback__):  # every set-up cell imports it
        said = f"{cause.name}, which {where or 'your answer'} uses, is not defined, and neither is torch."
        return Verdict("no-set-up", f"run the set-up cell first: {said}")
    if isinstance(error, Mistake):
        return replace(error.verdict, message=f"{where}: {error.verdict.message}" if where else error.verdict.message)
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, NameError) and where:
        said += ". If a cell above defines it, run that cell first"
    return Verdict("raises", f"{where}: {said}" if where else f"calling your function, or reading its result: {said}")


def _named(takes: type | tuple[type, ...]) -> str:
    """What an exercise takes, in words."""
    if takes is Callable:
        return "a function"
    return " or ".join(f"a {kind.__name__}" for kind in (takes if isinstance(takes, tuple) else (takes,)))


for _path in sorted(Path(__file__).parent.glob("nb*.py")):
    for _found in vars(import_module(f"{__name__}.{_path.stem}")).values():
        if isinstance(_found, Exercise):
            EXERCISES[_found.name] = _found
