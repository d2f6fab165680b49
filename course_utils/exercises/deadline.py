"""Stops a learner's function when its time is over: an alarm raises `Endless` in it.

That needs the main thread, in which a kernel runs cells, and a system with timers, so not Windows.
The stop button is Jupyter's, and works everywhere. A call into C, such as `sum(range(10**9))`, is
stopped when it returns.
"""

import dis
import linecache
import re
import signal
import sysconfig
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from traceback import format_tb
from types import FrameType, TracebackType
from typing import Any

import torch

_OURS = [str(Path(__file__).parents[2] / package) for package in ("course_utils", "gradaudit")]
_TORCH = str(Path(torch.__file__).parent)
_LIBRARIES = (*sysconfig.get_paths().values(), _TORCH, *_OURS, "<frozen ", "<made ", "<string>")


class Endless(BaseException):
    """The time is over. No `Exception`, so that `except Exception` doesn't catch it."""


def run(function: Callable[[], Any], seconds: float) -> Any:
    """Runs a function for at most so many seconds, and returns what it returns.

    Args:
        function: What to run, without arguments.
        seconds: How long it may take.

    Raises:
        Endless: If it takes longer.

    Example:
        >>> run(lambda: 6 * 7, seconds=1.0)
        42
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        return function()

    def stop(_: int, frame: FrameType) -> None:
        if frame.f_code is not run.__code__:  # there, the function has ended
            # Again at odd moments, since a bare `except:` may have caught the last one.
            signal.setitimer(signal.ITIMER_REAL, 1e-6 + time.monotonic() % 2e-4)
            raise Endless

    handler, timer = signal.signal(signal.SIGALRM, stop), signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return function()
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def line_of(traceback: TracebackType | str | None) -> str:
    """The innermost line of the learner's code, as ``line 3, `while True:` ``, or nothing."""
    text = traceback if isinstance(traceback, str) else "".join(format_tb(traceback))  # a text is of another process
    frames = re.findall(r'File "(.+)", line (\d+), in .+\n(?: {4}(.+))?', text)
    learners = [f"line {number}, `{line}`" for file, number, line in frames if not file.startswith(_LIBRARIES)]
    return learners[-1] if learners else ""


def unwritten(function: Callable) -> str:
    """A function of the notebook that this one calls and in which nothing is written, or nothing."""
    own = getattr(function, "__code__", None)
    for name in [step.argval for step in dis.get_instructions(own) if step.opname == "LOAD_GLOBAL"] if own else ():
        code = getattr(function.__globals__.get(name), "__code__", None)
        if code and all(step.argval is None or step.opname == "RESUME" for step in dis.get_instructions(code)):
            return name
    return ""


def uncalled(function: Callable) -> str:
    """The first line that is a name without parentheses, as `optimizer.step`, or nothing."""
    code = getattr(function, "__code__", None)
    for name, after in pairwise(dis.get_instructions(code) if code else ()):
        if (name.opname, after.opname) == ("LOAD_ATTR", "POP_TOP"):
            line = name.positions.lineno
            return f"line {line}, `{linecache.getline(code.co_filename, line).strip()}`"
    return ""
