"""Keeps the observer's own errors out of the script that it watches: the first one ends the watching, not the run."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from textwrap import shorten
from traceback import format_exception_only, walk_tb

from torch import Tensor

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
        self.lock = threading.Lock()

    def __call__(self, function: Callable) -> Callable:
        """The function as a hook: it returns None where it fails, and from the first failure on."""

        def guarded(*args):
            if self.failure is None:
                try:
                    return function(*args)
                except Exception as error:
                    self.fail(error)
            return None

        return guarded

    def around(self, watch: Callable[..., Generator], used_up: bool = False) -> Callable[[Callable], Callable]:
        """What makes a watched function of any function, which is called once, with what it was given.

        Args:
            watch: A generator function. It gets the same arguments and yields once, where the original runs, for what
                that returned; it is closed there if the original raises.
            used_up: `watch` goes through the first argument, which may be an iterator.
        """

        def wrapper(original: Callable) -> Callable:
            def call(*args, **kwargs):
                if used_up and not (args and isinstance(args[0], Tensor)):
                    args, kwargs = _listed(args, kwargs)
                if self.failure is None:
                    try:
                        watching = watch(*args, **kwargs)
                        next(watching, None)
                    except Exception as error:
                        self.fail(error)
                if self.failure is not None:
                    return original(*args, **kwargs)
                try:
                    result = original(*args, **kwargs)
                except BaseException:
                    try:
                        watching.close()
                    except Exception as error:
                        self.fail(error)
                    raise
                try:
                    watching.send(result) if self.failure is None else watching.close()
                except StopIteration:
                    pass
                except Exception as error:
                    self.fail(error)
                return result

            return call

        return wrapper

    def fail(self, error: Exception) -> None:
        """Notes an error of the observer's own and warns of it, if it is the first."""
        if _is_of_a_signal(error):
            raise error
        from gradaudit.callsite import where  # a record alone doesn't need it

        script = where()  # "" if this thread runs nothing of it
        with self.lock:
            if self.failure is not None:
                return
            self.failure = f"{_in_words(error)}, at {_own_line(error)}, called from {script}"
        self.told(self.failure)
        _warn(f"{self.who} has failed ({self.failure}) and {self.then}: please report this.", script)


def _listed(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Iterators become lists. What it raises comes from the script."""
    args = tuple(list(value) if hasattr(value, "__next__") else value for value in args)
    return args, {name: list(value) if hasattr(value, "__next__") else value for name, value in kwargs.items()}


def _is_of_a_signal(error: Exception) -> bool:
    """Has a handler of a signal raised it, as for a time limit, while the observer was running?"""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in walk_tb(error.__traceback__))


def _in_words(error: Exception) -> str:
    return shorten("".join(format_exception_only(error)), _LONGEST, placeholder=" ...")


def _own_line(error: Exception) -> str:
    """Where our code raised the error, or called what raised it."""
    lines = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [at for at in lines if at[0].startswith(_OWN) and not at[0].startswith(__file__)]
    file, line = (own or lines)[-1]
    path = Path(file)
    return f"{path.relative_to(_HOME).as_posix() if file.startswith(_OWN) else path}:{line}"


def _warn(text: str, script: str) -> None:
    file, _, line = script.rpartition(":")
    try:
        warnings.warn_explicit(text, ObserverFailure, file or __file__, int(line or 0))
    except Exception as error:
        asked = any(action == "error" and category is ObserverFailure for action, _, category, *_ in warnings.filters)
        if isinstance(error, ObserverFailure) and asked:
            raise
        with suppress(Exception):
            sys.stderr.write(f"{text}\n")
