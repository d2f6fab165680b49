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
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

_OURS = str(Path(__file__).parent.parent)
_LIBRARIES = (*sysconfig.get_paths().values(), str(Path(torch.__file__).parent), _OURS, "<frozen ")
_SLICE = 0.05  # seconds between two looks at whether the time is over
_GRACE = 1.0  # seconds in which a stop waits for a moment when the function's own code is running
_STUCK = 2.0  # seconds in one call into C after which the caller no longer waits for it
_PATIENCE = 10.0  # seconds after which the caller no longer waits for a function that catches every stop
_CAUGHT, _MOST = 3, 20  # after so many stops that a bare `except` has caught, each is followed by one more, up to 20

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

    An interrupt from the keyboard stops the function too. Threads that it started and that still run code of the
    learner's are stopped when it ends.

    Args:
        function: What to run, without arguments.
        seconds: How long it may take.

    Example:
        >>> run(lambda: 6 * 7, seconds=1.0).value
        42
        >>> type(run(lambda: {}["key"], seconds=1.0).error)
        <class 'KeyError'>
    """
    before = {thread.ident for thread in threading.enumerate()}
    call = _Call(function)
    with _interrupts() as interrupted:
        call.start()
        reason = call.wait(seconds, interrupted)
        if reason:
            call.stop(reason)
    if not call.over:
        threading.Thread(target=call.pursue, name="pursue", daemon=True).start()
    _stop_threads(before | {call.thread.ident})
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
        self._over = threading.Event()
        self._target = ctypes.c_ulong(0)
        self._sent = 0
        self._caught: list[None] = []  # one entry for each stop that has arrived

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def start(self) -> None:
        self._began = time.monotonic()
        self.thread.start()

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
        self._over.set()

    def wait(self, seconds: float, interrupted: Callable[[], bool]) -> str:
        """Waits until the function ends or has to be stopped; then says why."""
        left, now = seconds, self._began
        while not self.over:
            before, now = now, time.monotonic()
            if not self._is_importing():
                left -= now - before
            if interrupted() or left <= 0:
                return "interrupted" if interrupted() else "endless"
            self._over.wait(min(_SLICE, left))
        return ""

    def stop(self, reason: str) -> None:
        """Stops the function, or gives up if it cannot be stopped now."""
        self.outcome.where = _line_in(self._frame())
        started = moved = time.monotonic()
        place, watch = None, _Watch()
        while not self.over:
            frame = self._frame()
            here, now = frame and (id(frame), frame.f_lasti, len(self._caught)), time.monotonic()
            if here != place:
                place, moved = here, now
            if now - moved > _STUCK or now - started > _PATIENCE:
                self.outcome.goes_on = True
                break
            self._send(frame, watch)
            self._over.wait(0.001)
        if self.outcome.goes_on or self._caught or isinstance(self.outcome.error, Endless):
            self.outcome.stopped = reason  # otherwise it has ended by itself in the meantime

    def pursue(self) -> None:
        """Goes on stopping a function for which nobody waits any more."""
        watch = _Watch()
        while not self._over.wait(0.01):
            self._send(self._frame(), watch)

    def _send(self, frame: FrameType | None, watch: "_Watch") -> None:
        """Sends a stop, unless one is on its way, or a module is being imported, which would stay half imported."""
        if self._sent > len(self._caught) or self._is_importing():
            return
        # In the middle of a library, a stop could leave a setting of that library changed.
        if watch.allows(_is_learners(frame), pause=0.05 if self._sent else 0.0):
            self._sent += 1
            number = min(1 + len(self._caught) // _CAUGHT, _MOST)
            _set_async_exc(self._target, self._stop(number))

    def _stop(self, number: int) -> type[Endless]:
        """`Endless`, `number` times: as soon as one is made, the next is on its way; the last one is counted.

        The second arrives when a bare `except` has caught the first, and before its loop goes round. No line of
        Python may run in between, since it would arrive there: so each `__init__` is a function of C itself.
        """
        stop = type("Endless", (Endless,), {"__init__": staticmethod(partial(self._caught.append, None))})
        for _ in range(number - 1):
            then = partial(_set_async_exc, self._target, stop)
            stop = type("Endless", (Endless,), {"__init__": staticmethod(then)})
        return stop

    def _frame(self) -> FrameType | None:
        """The innermost frame. CPython 3.11 can crash where the frames around it are read while they run."""
        return sys._current_frames().get(self.thread.ident)

    def _is_importing(self) -> bool:
        """Whether the function's thread holds the lock of a module that is being imported."""
        locks = [reference() for reference in list(_module_locks.values())]
        return any(getattr(lock, "owner", None) == self.thread.ident for lock in locks)


class _Watch:
    """Whether now is a good moment for a stop: at once in the learner's own code, elsewhere after a while."""

    def __init__(self):
        self._since = time.monotonic()

    def allows(self, learners: bool, pause: float) -> bool:
        now = time.monotonic()
        if now - self._since < (pause if learners else _GRACE):
            return False
        self._since = now
        return True


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


def _stop_threads(known: set[int | None]) -> None:
    """Ends the threads that the function started and in which code of the learner's still runs."""
    stopped = []
    for thread in threading.enumerate():
        if thread.ident not in known and _runs_learners_code(thread):
            _set_async_exc(thread.ident, SystemExit)  # of which a thread says nothing when it ends
            stopped.append(thread)
    for thread in stopped:
        thread.join(timeout=0.2)
    if stopped:
        _settle()


def _runs_learners_code(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None) or type(thread).run
    file = getattr(getattr(target, "__code__", None), "co_filename", "")
    return _is_learners(sys._current_frames().get(thread.ident)) or bool(file and not file.startswith(_LIBRARIES))


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
