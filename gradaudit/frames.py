"""Tracebacks as they would be without the audit."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

_HOME = Path(__file__).parents[1]
_AUDITOR = tuple(f"{_HOME / package}{os.sep}" for package in ("gradaudit", "course_utils/recording"))


@contextmanager
def clean_tracebacks() -> Iterator[None]:
    """An error that leaves the block has no frames of the auditor in its traceback."""
    try:
        yield
    except BaseException as error:
        without_auditor(error)
        raise


def without_auditor(error: BaseException) -> BaseException:
    """Takes the auditor's own frames out of the traceback of a script's error, and of the errors that led to it.

    An error that the auditor itself has raised keeps them.

    Args:
        error: Any exception; it is changed in place.

    Returns:
        The same exception.
    """
    for each in _chain(error):
        entries = list(_entries(each.__traceback__))
        if not entries or _is_auditor(entries[-1]):
            continue
        kept = [entry for entry in entries if not _is_auditor(entry)]
        for entry, following in zip(kept, [*kept[1:], None], strict=False):
            entry.tb_next = following
        each.__traceback__ = kept[0]
    return error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and all those in its context, each once."""
    seen, due = set(), [error]
    while due:
        each = due.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            due += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
            yield each


def _entries(entry: TracebackType | None) -> Iterator[TracebackType]:
    while entry is not None:
        yield entry
        entry = entry.tb_next


def _is_auditor(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_AUDITOR)
