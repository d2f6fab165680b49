"""Ctrl-C that waits for what must not be left half done. Needs nothing but Python."""

import _signal  # what `signal` wraps, to make enums of handlers: that would take ten times as long as all the rest
import threading


class uninterrupted:
    """An interrupt that comes while the block runs is raised when it has ended.

    Only the main thread is interrupted by Ctrl-C; in any other this does nothing. Where the script ignores interrupts,
    or leaves them to the system, it does nothing either.

    Example:
        >>> import signal
        >>> try:
        ...     with uninterrupted():
        ...         signal.raise_signal(signal.SIGINT)
        ...         print("whole")
        ... except KeyboardInterrupt:
        ...     print("interrupted")
        whole
        interrupted
    """

    def __enter__(self) -> None:
        self._handler, self._came = _signal.getsignal(_signal.SIGINT), []
        if callable(self._handler) and threading.current_thread() is threading.main_thread():
            _signal.signal(_signal.SIGINT, lambda *args: self._came.append(args))
        else:
            self._handler = None

    def __exit__(self, *error: object) -> None:
        if self._handler is not None:
            _signal.signal(_signal.SIGINT, self._handler)
            if self._came:
                self._handler(*self._came[-1])
