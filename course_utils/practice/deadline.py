"""A limit on how long a learner's function may run, which also stops a loop that never ends.

A thread waits until the time is over and then raises `Endless` in the thread that runs the function. It needs no
signal, so it works on Windows and in a kernel, and it costs nothing before the time is over. It cannot stop a single
call into C that never returns.
"""

import ctypes
import linecache
import sys
import sysconfig
import threading
import time
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType

import torch

_OURS = str(Path(__file__).parent.parent)
_LIBRARIES = (*sysconfig.get_paths().values(), str(Path(torch.__file__).parent), _OURS, "<frozen ")
_GRACE = 1.0  # seconds in which the stop waits for a moment when the function's own code is running
_CAUGHT = 3  # after so many stops that a bare `except` has caught, each is followed by one more at once

_set_async_exc = ctypes.PYFUNCTYPE(None, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


class Endless(BaseException):
    """The time is over. No `Exception`, so that `except Exception` in the function does not catch it."""


class _Last(Endless):
    """Nothing is on its way any more."""


class Deadline:
    """Raises `Endless` in the block that it guards if that still runs after `seconds`, until it ends."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._thread = threading.get_ident()
        self._ended = threading.Event()
        self._lock = threading.RLock()
        self._sent = False

    def __enter__(self) -> "Deadline":
        threading.Thread(target=self._watch, name="deadline", daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        while True:
            try:
                with self._lock:
                    self._ended.set()
                if not self._sent:
                    return
                # One that is on its way would arrive later. It is not withdrawn but replaced by one that arrives here:
                # the interpreter goes on looking for one that was withdrawn, and hangs if a profiler is on.
                _set_async_exc(self._thread, _Last)
                while True:
                    pass
            except _Last:
                return
            except Endless:
                continue

    def _watch(self) -> None:
        pause, since, stops = self._seconds, time.monotonic() + self._seconds, 0
        while not self._ended.wait(pause):
            with self._lock:
                if self._ended.is_set():
                    return
                # In the middle of a library, a stop could leave a setting of that library changed.
                learners = _is_learners(sys._current_frames().get(self._thread))
                pause = 0.001
                if learners or time.monotonic() > since + _GRACE:
                    self._sent = True
                    _set_async_exc(self._thread, self._stop(1 + stops // _CAUGHT))
                    pause, since, stops = 0.05, time.monotonic(), stops + 1

    def _stop(self, number: int) -> type[Endless]:
        """`Endless`, `number` times: as soon as one is made, the next is on its way.

        The second arrives when a bare `except` has caught the first, and before its loop goes round. No line of
        Python may run in between, since it would arrive there: so `__init__` is the function of C itself.
        """
        stop = Endless
        for _ in range(number - 1):
            stop = type("Endless", (Endless,), {"__init__": staticmethod(partial(_set_async_exc, self._thread, stop))})
        return stop


def place(traceback: TracebackType | None) -> str:
    """The line of the learner's own code where a stop arrived, as `line 3, "while True:"`; empty if in none."""
    found = ""
    while traceback is not None:
        if _is_learners(traceback.tb_frame):
            code = linecache.getline(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno).strip()
            found = f"line {traceback.tb_lineno}" + (f", `{code}`" if code else "")
        traceback = traceback.tb_next
    return found


def _is_learners(frame: FrameType | None) -> bool:
    return frame is not None and not frame.f_code.co_filename.startswith(_LIBRARIES)
