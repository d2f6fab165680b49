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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

_OURS = str(Path(__file__).parent.parent)
_LIBRARIES = (*sysconfig.get_paths().values(), str(Path(torch.__file__).parent), _OURS, "<frozen ", "<made ")
_GRACE = 1.0  # seconds in which a stop waits for a moment when one of the learner's own lines is running


class Endless(BaseException):
    """The time is over. No `Exception`, so that `except Exception` in the function does not catch it."""


@dataclass
class Outcome:
    """How a function ended: with a value, with an error, or because it was stopped."""

    value: Any = None
    error: BaseException | None = None
    stopped: str = ""  # "endless" if the time was over, "interrupted" if the learner pressed the stop button
    where: str = ""  # the learner's line that was running then


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
    on_main, again = threading.current_thread() is threading.main_thread(), hasattr(signal, "setitimer")

    def stop(number: int, frame: FrameType) -> None:
        running = [_line(each.f_code.co_filename, each.f_lineno) for each in _frames(frame) if _is_learners(each)]
        outcome.stopped = outcome.stopped or ("interrupted" if number == signal.SIGINT else "endless")
        outcome.where = outcome.where or (running[0] if running else "")
        if again:  # at random moments: one of them is that in which a bare `except:` has just caught the last
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 2e-4))
        # A stop in the middle of a library could leave one of its settings changed, or a module half imported.
        now = _is_learners(frame) or number == signal.SIGINT or time.monotonic() > latest
        importing = any(each.f_code.co_filename.startswith("<frozen importlib") for each in _frames(frame))
        if running and now and not importing:
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


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames that are running in `run`, from the innermost on."""
    while frame is not None and frame.f_code is not run.__code__:
        yield frame
        frame = frame.f_back


def place(traceback: TracebackType | None) -> str:
    """The innermost line of the learner's own code, as `line 3, "while True:"`; empty if there is none."""
    found = ""
    while traceback is not None:
        if _is_learners(traceback.tb_frame):
            found = _line(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno) or found
        traceback = traceback.tb_next
    return found


def _line(file: str, number: int) -> str:
    code = linecache.getline(file, number).strip()
    return f"line {number}" + (f", `{code}`" if code else "")


def _is_learners(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(_LIBRARIES)
