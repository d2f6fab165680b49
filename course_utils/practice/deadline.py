"""Runs a learner's function so that nothing of it outlives the call: no endless loop, no interrupt, no late exception.

The function runs in a thread of its own, while the caller's thread waits. When the time is over, or the learner presses
the stop button, `Endless` is raised in the function's thread and nowhere else, so nothing can arrive late in the next
cell. It needs no signal but Ctrl-C, so it works on Windows and in a kernel.

A call into C cannot be interrupted. If one lets other threads run, as `time.sleep` and large matrix products do, the
caller stops waiting; the function's thread ends as soon as the call returns. If one does not, such as
`sum(range(10**9))`, the caller can only say so when it has returned.
"""

import contextvars
import ctypes
import linecache
import signal
import sys
import sysconfig
import threading
import time
from _frozen_importlib import _module_locks
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

_OURS = str(Path(__file__).parent.parent)
_LIBRARIES = (*sysconfig.get_paths().values(), str(Path(torch.__file__).parent), _OURS, "<frozen ")
_SLICE = 0.05  # seconds between two looks at whether the time is over
_GRACE = 1.0  # seconds in which a stop waits for a moment when the function's own code is running
_PATIENCE = 2.5  # seconds after which the caller no longer waits for a function that a stop does not end
_MOST = 20  # each stop that a bare `except` has caught is followed by one more stop, up to so many

_set_async_exc = ctypes.PYFUNCTYPE(None, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


class Endless(BaseException):
    """The time is over. No `Exception`, so that `except Exception` in the function does not catch it."""


class _Last(BaseException):
    """Nothing more is on its way to this thread."""


@dataclass
class Outcome:
    """How a function ended: with a value, with an error, or because it was stopped."""

    value: Any = None
    error: BaseException | None = None
    stopped: str = ""  # "endless" if the time was over, "interrupted" if the learner pressed the stop button
    where: str = ""  # the learner's line that was running then
    goes_on: bool = False  # in a call that cannot be stopped, until that returns


def run(function: Callable[[], Any], seconds: float) -> Outcome:
    """Runs a function for at most so many seconds. Importing modules does not count.

    An interrupt from the keyboard stops the function too.

    Args:
        function: What to run, without arguments.
        seconds: How long it may take.

    Example:
        >>> run(lambda: 6 * 7, seconds=1.0).value
        42
        >>> type(run(lambda: {}["key"], seconds=1.0).error)
        <class 'KeyError'>
    """
    call = _Call(function)
    with _interrupts() as interrupted:
        call.thread.start()
        reason = call.wait(seconds, interrupted)
        if reason:
            call.outcome.where = _line_in(call.frame())
            call.stop(_PATIENCE)
            call.outcome.goes_on = not call.over.is_set()
            if call.outcome.goes_on or call.caught or isinstance(call.outcome.error, Endless):
                call.outcome.stopped = reason  # otherwise it has ended by itself in the meantime
    if call.outcome.goes_on:
        threading.Thread(target=call.stop, args=(inf,), name="pursue", daemon=True).start()
    return call.outcome


class _Call:
    """A function that runs in a thread of its own, from which exceptions can come only while it runs.

    `target` is the thread's identity while the function runs, and 0 before and after: what is sent to 0 is lost. At
    most one exception can be on its way when the function ends, and it is replaced by one that arrives there and then:
    CPython 3.11 goes on looking for an exception that was withdrawn, and hangs if a profiler is on.
    """

    def __init__(self, function: Callable[[], Any]):
        self.outcome = Outcome()
        self.thread = threading.Thread(target=self._work, name="answer", daemon=True)
        self._function = partial(contextvars.copy_context().run, function)  # what it displays belongs to this cell
        self.over = threading.Event()
        self.caught: list[None] = []  # one entry for each stop that has arrived
        self._target = ctypes.c_ulong(0)
        self._sent = 0

    def _work(self) -> None:
        # CPython looks for exceptions from other threads when it calls a function or jumps back, and not in between:
        # where the target is set to 0, none can come between an exception that arrives and this line.
        try:
            try:
                self._target.value = threading.get_ident()
                self.outcome.value = self._function()
                self._target.value = 0
            except BaseException as error:
                self._target.value = 0
                self.outcome.error = error
            if self._sent:
                _settle()
        except BaseException:
            _settle()
        self.over.set()

    def wait(self, seconds: float, interrupted: Callable[[], bool]) -> str:
        """Waits until the function ends or has to be stopped; then says why."""
        left, now = seconds, time.monotonic()
        while not self.over.wait(max(0.0, min(_SLICE, left))):
            before, now = now, time.monotonic()
            if not self._is_importing():
                left -= now - before
            if interrupted() or left <= 0:
                return "interrupted" if interrupted() else "endless"
        return ""

    def stop(self, patience: float) -> None:
        """Sends one stop after the other, until the function ends or the caller's patience does.

        At once in the learner's own code; in the middle of a library, where a stop could leave a setting of that
        library changed, after a while; never while a module is imported, which would stay half imported.
        """
        began = last = time.monotonic()
        while not self.over.is_set() and (now := time.monotonic()) - began < patience:
            pause = (0.05 if self._sent else 0.0) if _is_learners(self.frame()) else _GRACE
            if self._sent == len(self.caught) and now - last >= pause and not self._is_importing():
                last = now
                self._sent += 1
                _set_async_exc(self._target, self._stop(min(self._sent, _MOST)))
            self.over.wait(0.002)

    def _stop(self, number: int) -> type[Endless]:
        """`Endless`, `number` times: as soon as one is made, the next is on its way; the last one is counted.

        The second arrives when a bare `except` has caught the first, and before its loop goes round. No line of
        Python may run in between, since it would arrive there: so each `__init__` is a function of C itself.
        """
        stop = type("Endless", (Endless,), {"__init__": staticmethod(partial(self.caught.append, None))})
        for _ in range(number - 1):
            then = partial(_set_async_exc, self._target, stop)
            stop = type("Endless", (Endless,), {"__init__": staticmethod(then)})
        return stop

    def frame(self) -> FrameType | None:
        """The innermost frame. CPython 3.11 can crash where the frames around it are read while they run."""
        return sys._current_frames().get(self.thread.ident)

    def _is_importing(self) -> bool:
        """Whether the function's thread holds the lock of a module that is being imported."""
        locks = [reference() for reference in list(_module_locks.values())]
        return any(getattr(lock, "owner", None) == self.thread.ident for lock in locks)


def _settle() -> None:
    """Waits for an exception of its own, in whose place none from another thread can be on its way any more."""
    try:
        _set_async_exc(threading.get_ident(), _Last)
        while True:
            pass
    except _Last:
        pass


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """An interrupt from the keyboard is noted in this block, and raises nothing."""
    noted = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # no other thread hears of one
        yield noted.is_set
        return
    before = signal.signal(signal.SIGINT, lambda *_: noted.set())
    try:
        yield noted.is_set
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


def place(traceback: TracebackType | None) -> str:
    """The innermost line of the learner's own code, as `line 3, "while True:"`; empty if there is none."""
    found = ""
    while traceback is not None:
        if _is_learners(traceback.tb_frame):
            found = _line(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno) or found
        traceback = traceback.tb_next
    return found


def line_of(frame: FrameType | None) -> str:
    """The same of the functions that are running in this thread, from the innermost frame on."""
    while frame is not None:
        if line := _line_in(frame):
            return line
        frame = frame.f_back
    return ""


def _line_in(frame: FrameType | None) -> str:
    return _line(frame.f_code.co_filename, frame.f_lineno) if _is_learners(frame) else ""


def _line(file: str, number: int | None) -> str:
    code = linecache.getline(file, number or 0).strip()
    return f"line {number}" + (f", `{code}`" if code else "") if number else ""


def _is_learners(frame: FrameType | None) -> bool:
    """Whether a frame runs code of the learner's: not of a library, nor such as a library makes while it runs."""
    if frame is None or frame.f_code.co_filename.startswith(_LIBRARIES):
        return False
    made_by = frame.f_globals.get("__file__") or "" if frame.f_code.co_filename.startswith("<") else ""
    return not made_by.startswith(_LIBRARIES)
