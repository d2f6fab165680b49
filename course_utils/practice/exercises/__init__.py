"""The exercises, in modules by notebook: every `Exercise` that a module beside this one declares is found here."""

import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from reprlib import repr
from typing import Any

import torch

from course_utils.practice.bench import Exercise, Mistake, Verdict
from course_utils.practice.deadline import Outcome, place, run

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
        kind = "function" if found.takes is Callable else getattr(found.takes, "__name__", found.takes)
        bug = "not-a-function" if kind == "function" else "wrong-type"
        verdict = Verdict(bug, f"expected a {kind}, got {repr(answer)} ({type(answer).__name__}).")
    return replace(verdict, hint="" if verdict.passed else found.hint(verdict.bug))


def _judged(found: Exercise, answer: Any, limit: float) -> Verdict:
    printed, dtype, device = StringIO(), torch.get_default_dtype(), torch.get_default_device()
    with (
        torch.random.fork_rng(devices=()),
        torch.enable_grad(),
        warnings.catch_warnings(),
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        warnings.simplefilter("default")
        torch.set_default_dtype(torch.float64)  # as the notebooks' set-up does; in bfloat16 no tolerance would hold
        outcome = run(lambda: found.judge(answer), limit)
    torch.set_default_dtype(dtype)
    if torch.get_default_device() != device:
        torch.set_default_device(device)
    return replace(_verdict(outcome, limit), printed=printed.getvalue()[:MOST])


def _verdict(outcome: Outcome, limit: float) -> Verdict:
    error = outcome.error
    if outcome.stopped:
        after = f"stopped: it was still running after {limit:g} second{'s' * (limit != 1)}"
        what = "stopped by you" if outcome.stopped == "interrupted" else after
        return Verdict(outcome.stopped, f"{what}{outcome.where}.")
    if error is None:
        return Verdict("", outcome.value)
    if isinstance(error, Mistake):
        return error.verdict
    where = place(error.__traceback__) or "calling your function, or reading its result"
    said = f"{type(error).__name__}: {error}".removesuffix(": ")
    if type(error) is NameError:
        said += ". If a cell above defines it, run that cell first"
    return Verdict("raises", f"{where}: {said}")


for _path in sorted(Path(__file__).parent.glob("nb*.py")):
    for _found in vars(import_module(f"{__name__}.{_path.stem}")).values():
        if isinstance(_found, Exercise):
            EXERCISES[_found.name] = _found
