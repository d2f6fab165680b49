"""Notes what torch deprecates, in every Python process that has this folder in PYTHONPATH and is told where to note.

Python imports a module of this name when it starts. No filter of warnings hides anything from it, but a warning that
C++ raises does not come here.
"""

import json
import linecache
import os
import sys
import warnings
from types import FrameType

FILE = "COURSE_WARNED"  # the environment's name for the file
DECORATORS = "typing_extensions", "warnings"  # their `deprecated` warns in the name of what it decorates


def note(warn, file: str):
    """`warn`, but what torch deprecates is also appended to a file."""

    def noting(message, category=None, stacklevel=1, *args, **kwargs):
        kind = type(message) if isinstance(message, Warning) else category or UserWarning
        if issubclass(kind, (DeprecationWarning, FutureWarning)) and (caller := caller_of_torch(sys._getframe(1))):
            said = {"kind": kind.__name__, "message": str(message), "where": caller}
            with open(file, "a", encoding="utf-8") as notes:
                notes.write(json.dumps(said) + "\n")
        return warn(message, category, stacklevel + 1, *args, **kwargs)

    return noting


def caller_of_torch(frame: FrameType | None) -> str:
    """The line that called torch, if this is a frame of torch; otherwise nothing."""
    if frame.f_globals.get("__name__") in DECORATORS:
        owner, frame = getattr(frame.f_locals.get("arg"), "__module__", ""), frame.f_back
    else:
        owner = frame.f_globals.get("__name__", "")
    if owner.partition(".")[0] != "torch":
        return ""
    while frame and _package(frame) in ("torch", "importlib"):
        frame = frame.f_back
    if frame is None:
        return "torch itself"
    name, number = frame.f_code.co_filename, frame.f_lineno
    return linecache.getline(name, number).strip() or f"{name}:{number}"


def _package(frame: FrameType) -> str:
    return frame.f_globals.get("__name__", "").partition(".")[0]


if FILE in os.environ:
    warnings.warn = note(warnings.warn, os.environ[FILE])
