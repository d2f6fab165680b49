"""Right and wrong answers to the exercises: nb02_zeroing.py holds those of 02_zeroing.

Every answer that these modules register is judged by tests/exercises/test_answers.py. Most are
edits of the solution that the notebook prints, which itself need not be repeated.
"""

import inspect
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from solutions import solution


class Wrong(NamedTuple):
    """A wrong answer, the name of its bug, and words that the message must contain."""

    answer: Any
    bug: str
    says: str


RIGHT: dict[str, list] = {}
WRONG: dict[str, list[Wrong]] = {}


def right(*exercises: str) -> Callable:
    """What the returned function is called with, or decorates, is a right answer to each."""

    def keep(answer: Any) -> Any:
        for exercise in exercises:
            RIGHT.setdefault(exercise, []).append(answer)
        return answer

    return keep


def wrong(exercise: str, bug: str, says: str = "") -> Callable:
    """What the returned function is called with, or decorates, is rejected by its bug's name."""

    def keep(answer: Any) -> Any:
        WRONG.setdefault(exercise, []).append(Wrong(answer, bug, says))
        return answer

    return keep


def edited(exercise: str, *changes: tuple[str, str]) -> Callable:
    """The notebook's solution, edited: each change is from a text that occurs there once.

    The new texts may use torch, nn and suppress, whatever the notebook imports.
    """
    answer = solution(exercise)
    source = inspect.getsource(answer)
    for old, new in changes:
        assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in\n{source}"
        source = source.replace(old, new)
    namespace = {"nn": nn, "suppress": suppress, "torch": torch, **answer.__globals__}
    exec(source, namespace)
    return namespace[answer.__name__]


for _path in sorted(Path(__file__).parent.glob("nb*.py")):
    import_module(f"{__name__}.{_path.stem}")
