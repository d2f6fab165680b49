"""Right and wrong answers to the exercises, in modules by notebook: nb02_zeroing.py holds those of 02_zeroing.

Every function that is decorated in these modules is judged by tests/practice/test_answers.py; answers of other kinds,
such as texts, are passed to the decorator: `right("third_step")({"fbs": 111})`. The notebooks' own solutions need
not be repeated: they are read from their cells.
"""

import inspect
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn


class Wrong(NamedTuple):
    """A wrong answer, the name of its bug, and words that the message must contain."""

    answer: Callable
    bug: str
    sources: tuple[str, ...]
    says: str


RIGHT: dict[str, list[Callable]] = {}
WRONG: dict[str, list[Wrong]] = {}


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


def edited(answer: Callable, *changes: tuple[str, str]) -> Callable:
    """The function with places of its source changed, each from one text that occurs there once to another.

    The new texts may use torch, nn and suppress, whatever the function's module imports.
    """
    source = inspect.getsource(answer)
    source = source[source.index("def ") :]
    for old, new in changes:
        assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in\n{source}"
        source = source.replace(old, new)
    namespace = {"nn": nn, "suppress": suppress, "torch": torch, **answer.__globals__}
    exec(source, namespace)
    return namespace[answer.__name__]


for _path in sorted(Path(__file__).parent.glob("nb*.py")):
    import_module(f"{__name__}.{_path.stem}")
