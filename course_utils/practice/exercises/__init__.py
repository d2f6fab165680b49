"""The exercises and their judges, in one module per notebook: nb02_zeroing.py judges the exercises of 02_zeroing.

A judge takes the learner's answer, a function unless `takes` says otherwise. It returns a sentence that says what was
tried, or raises a `Mistake` that names the bug. To add an exercise, decorate its judge with `@exercise("name")`; to add
a notebook, add a module. Both are found here.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from reprlib import repr
from typing import Any

import torch

from course_utils.practice.deadline import Deadline, Endless, place
from course_utils.practice.hints import HINTS
from course_utils.practice.judging import Mistake, Verdict

Judge = Callable[[Any], str]
Takes = type | tuple[type, ...]


@dataclass(frozen=True)
class Exercise:
    name: str
    notebook: str  # that sets it
    judge: Judge
    hints: dict[str, str] = field(default_factory=dict)  # where this exercise says more than HINTS does
    takes: Takes = Callable  # what an answer is

    def hint(self, bug: str) -> str:
        """What helps a learner whose answer has this bug, without giving the solution away."""
        return self.hints.get(bug) or HINTS[bug]


EXERCISES: dict[str, Exercise] = {}  # in the order of the notebooks


def exercise(name: str, hints: dict[str, str] | None = None, takes: Takes = Callable) -> Callable[[Judge], Judge]:
    """Registers the judge that follows for the exercise `name` of the notebook after which its module is called.

    Args:
        name: The name by which `check` finds it.
        hints: By the name of a bug, what `check` shows in a fold under the verdict, instead of the general hint.
        takes: The type, or types, of an answer; by default anything that can be called.
    """

    def register(judge: Judge) -> Judge:
        if name in EXERCISES:
            raise ValueError(f"two exercises are called {name!r}: in {EXERCISES[name].judge.__module__} and {judge}")
        EXERCISES[name] = Exercise(name, judge.__module__.rpartition(".nb")[2], judge, hints or {}, takes)
        return judge

    return register


def judge(name: str, answer: Any, limit: float = 20.0) -> Verdict:
    """Judges a learner's solution of an exercise. Whatever the solution raises becomes part of the verdict.

    Args:
        name: The name of the exercise.
        answer: The learner's function, or whatever else the exercise takes.
        limit: Seconds after which the function is stopped; the bug is then called `endless`.

    Raises:
        ValueError: If no exercise has this name.

    Example:
        >>> judge("slope", lambda f, w, h: (f(w + h) - f(w - h)) / (2 * h)).passed
        True
    """
    if name not in EXERCISES:
        raise ValueError(f"no exercise is called {name!r}, only {', '.join(EXERCISES)}")
    takes = EXERCISES[name].takes
    if not isinstance(answer, takes):
        got = f"got {repr(answer)} ({type(answer).__name__})"
        if takes is Callable:
            return Verdict("not-a-function", f"expected a function, {got}.")
        kinds = " or ".join(kind.__name__ for kind in (takes if isinstance(takes, tuple) else (takes,)))
        return Verdict("wrong-type", f"expected a {kinds}, {got}.")
    with torch.random.fork_rng(devices=()), torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as PyTorch's own, of a scheduler that steps before the optimizer
        torch.default_generator.manual_seed(1)
        try:
            with Deadline(limit):
                return Verdict("", EXERCISES[name].judge(answer))
        except Endless as stopped:
            where = place(stopped.__traceback__)
            hint = f"stopped: it was still running after {limit:g} seconds" + (f", in {where}" if where else "")
            return Verdict("endless", f"{hint}.")
        except Mistake as mistake:
            return mistake.verdict
        except (Exception, SystemExit) as error:
            return Verdict("raises", f"your function raised {type(error).__name__}: {error}")


for _path in sorted(Path(__file__).parent.glob("nb*.py")):
    import_module(f"{__name__}.{_path.stem}")
