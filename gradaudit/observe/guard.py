"""Keeps the observer's own errors out of the script that it watches: the first one ends the watching, not the run."""

import os
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from textwrap import shorten
from traceback import format_exception_only, walk_tb

from gradaudit.observe.uncompiled import leave_uncompiled

_HOME = Path(__file__).parents[2]
_OWN = tuple(f"{_HOME / package}{os.sep}" for package in ("gradaudit", "course_utils"))
_LONGEST = 300  # characters of an error's text


class ObserverFailure(RuntimeWarning):
    """The auditor, or a record, has failed, and the script goes on without it.

    It is never raised in the script, also where all warnings are errors, unless a filter asks for that by its name:
    `warnings.filterwarnings("error", category=ObserverFailure)`.
    """


class Guard:
    """Calls the observer's own code; none of it any more after its first error. Interrupts go through.

    Args:
        who: Whose error it would be, as the warning says it.
        then: What follows from it, as the warning says it.
        told: Called with the failure.

    Attributes:
        failure: The first error and where it came from, in one line; None while there is none.

    Example:
        >>> guard = Guard("The auditor", "the script goes on unwatched")
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     guard(lambda: 1 / 0)()
        >>> guard.failure.partition(",")[0]
        'ZeroDivisionError: division by zero'
    """

    def __init__(self, who: str, then: str, told: Callable[[str], None] = lambda failure: None) -> None:
        self.who, self.then, self.told = who, then, told
        self.failure: str | None = None

    def __call__(self, function: Callable) -> Callable:
        """The function as a hook: it returns None where it fails, and from the first failure on."""

        def guarded(*args):
            if self.failure is None:
                try:
                    return function(*args)
                except Exception as error:
                    self.fail(error)
            return None

        leave_uncompiled(guarded, calls=True)
        return guarded

    def around(self, watch: Callable[..., Generator], used_up: bool = False) -> Callable[[Callable], Callable]:
        """What makes a watched function of any function, which is called once, with what it was given.

        Args:
            watch: A generator function. It gets the same arguments and yields once, where the original runs, for what
                that returned; it is closed there if the original raises.
            used_up: `watch` goes through the first argument, which may be an iterator.
        """
        begin, end, close = self(_begin), self(_end), self(lambda watching: watching.close())

        def wrapper(original: Callable) -> Callable:
            def call(*args, **kwargs):
                if used_up:
                    args, kwargs = _listed(args, kwargs)
                watching = begin(watch, args, kwargs)
                if watching is None:
                    return original(*args, **kwargs)
                try:
                    result = original(*args, **kwargs)
                except BaseException:
                    close(watching)
                    raise
                end(watching, result)
                return result

            leave_uncompiled(call)
            return call

        return wrapper

    def fail(self, error: Exception) -> None:
        """Notes an error of the observer's own and warns of it, if it is the first."""
        from gradaudit.callsite import where  # a record alone doesn't need it

        script = where()  # "" if this thread runs nothing of it
        if self.failure is not None:
            return
        words = shorten("".join(format_exception_only(error)), _LONGEST, placeholder=" ...")
        self.failure = f"{words}, at {_own_line(error)}, called from {script}"
        self.told(self.failure)
        _warn(f"{self.who} has failed ({self.failure}) and {self.then}: please report this.", script)


def _begin(watch: Callable[..., Generator], args: tuple, kwargs: dict) -> Generator:
    watching = watch(*args, **kwargs)
    next(watching, None)
    return watching


def _end(watching: Generator, result: object) -> None:
    with suppress(StopIteration):
        watching.send(result)


def _listed(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Iterators become lists. What it raises comes from the script."""
    args = tuple(list(value) if hasattr(value, "__next__") else value for value in args)
    return args, {name: list(value) if hasattr(value, "__next__") else value for name, value in kwargs.items()}


def _own_line(error: Exception) -> str:
    """Where our code raised the error, or called what raised it."""
    lines = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    file, line = [at for at in lines if at[0].startswith(_OWN)][-1]
    return f"{Path(file).relative_to(_HOME).as_posix()}:{line}"


def _warn(text: str, script: str) -> None:
    file, _, line = script.rpartition(":")
    try:
        warnings.warn_explicit(text, ObserverFailure, file or __file__, int(line or 0))
    except ObserverFailure:
        if any(action == "error" and category is ObserverFailure for action, _, category, *_ in warnings.filters):
            raise
        sys.stderr.write(f"{text}\n")
