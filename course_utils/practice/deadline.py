"""Stops a learner's function when its time is over, or when the learner presses the stop button.

An alarm, or Ctrl-C, raises `Endless` in the learner's code. That needs the main thread, in which a kernel runs cells,
and a system with timers: on Windows only the stop button stops the function. A call into C, such as
`sum(range(10**9))`, is stopped when it returns.
"""

import linecache
import random
import signal
import sysconfig
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType
from typing import Any

import torch

_OURS = [str(Path(__file__).parents[2] / package) for package in ("course_utils", "gradaudit")]
_LIBRARIES = (
    *sysconfig.get_paths().values(),
    str(Path(torch.__file__).parent),
    *_OURS,
    "<frozen ",
    "<made ",
    "<string>",
)
_GRACE = 1.0  # seconds in which a stop waits for a moment when one of the learner's own lines is running


class Endless(BaseException):
    """The time is over. No `Exception`, so that `except Exception` in the function does not catch it."""


@dataclass
class Outcome:
    """How a function ended: with a value, with an error, or because it was stopped."""

    value: Any = None
    error: BaseException | None = None
    stopped: str = ""  # "endless" if the time was over, "interrupted" if the learner pressed the stop button
    where: str = ""  # the learner's line that was running then, as `, in line 3`


def run(function: Callable[[], Any], seconds: float) -> Outcome:
    """Runs a function for at most so many seconds. An interrupt from the keyboard stops it, too.

    Args:
        function: What to run, without arguments.
        seconds: How long it may take.

    Example:
        >>> run(lambda: 6 * 7, seconds=1.0).value
        42
        >>> type(run(lambda: {}["key"], seconds=1.0).error)
        <class 'KeyError'>
    """
    outcome, latest = Outcome(), time.monotonic() + seconds + _GRACE
    moments = random.Random()
    on_main, again = threading.current_thread() is threading.main_thread(), hasattr(signal, "setitimer")

    def stop(number: int, frame: FrameType) -> None:
        here = [*takewhile(lambda each: each.f_code is not run.__code__, (each for each, _ in walk_stack(frame)))]
        learners = [each for each in here if _is_learners(each)]
        outcome.stopped = outcome.stopped or ("interrupted" if number == signal.SIGINT else "endless")
        outcome.where = outcome.where or "".join(f", in {_line(each, each.f_lineno)}" for each in learners[:1])
        if again:  # at random moments: one of them is that in which a bare `except:` has just caught the last
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-6, 2e-4), 0.01)
        # A stop in the middle of a library could leave one of its settings changed, or a module half imported.
        now = number == signal.SIGINT or (learners and (_is_learners(frame) or time.monotonic() > latest))
        if here and now and not any(each.f_code.co_filename.startswith("<frozen importlib") for each in here):
            raise Endless

    numbers = [signal.SIGINT, signal.SIGALRM] if again else [signal.SIGINT]
    before = {number: signal.signal(number, stop) for number in numbers if on_main}
    timer = again and on_main and signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        outcome.value = function()
    except BaseException as error:
        outcome.error = error
    finally:
        again = False
        if timer:
            signal.setitimer(signal.ITIMER_REAL, *timer)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if not isinstance(outcome.error, Endless):
        outcome.stopped = outcome.where = ""  # it has ended by itself
    return outcome


def place(traceback: TracebackType | None) -> str:
    """The innermost line of the learner's own code, as ``line 3, `while True:` ``; empty if there is none."""
    lines = [_line(frame, number) for frame, number in walk_tb(traceback) if _is_learners(frame)]
    return lines[-1] if lines else ""


def _line(frame: FrameType, number: int) -> str:
    code = linecache.getline(frame.f_code.co_filename, number).strip()
    return f"line {number}" + (f", `{code}`" if code else "")


def _is_learners(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(_LIBRARIES)
