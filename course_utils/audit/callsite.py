"""Where in the user's code something happened."""

import contextlib
import os
import sys
import sysconfig
from functools import cache
from pathlib import Path

import torch

import course_utils

_PACKAGE = Path(course_utils.__file__).parent
_WATCHED = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, _PACKAGE))
_ZOO = f"{_PACKAGE / 'zoo'}{os.sep}"  # buggy loops to watch, although they stand in this package
_STANDARD = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))
_PACKAGES = ("/site-packages/", "/dist-packages/")


def caller_location() -> tuple[str, str]:
    """File and line of the user's code that led here; and a name for the way from there, through any library.

    Two calls inside a library may come from one line of the user's, and two lines of the user's may come to one call
    inside a library: only both together tell what belongs together.
    """
    frame, nearest = sys._getframe(1), ""
    while frame is not None:
        kind = _kind(frame.f_code.co_filename)
        if kind != "watched":
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            nearest = nearest or place
            if kind == "user":
                return place, f"{place} {nearest}"
        frame = frame.f_back
    return nearest, nearest


def where() -> str:
    return caller_location()[0]


def is_users(file: str) -> bool:
    return _kind(file) == "user"


@cache
def _kind(file: str) -> str:
    """Whose code it is: "watched" (PyTorch's and this package's own), "library", or "user"."""
    if file.startswith(_ZOO):
        return "user"
    if file.startswith((*_WATCHED, "<frozen", "<eval_with_key>")) or file == contextlib.__file__:
        return "watched"
    path = file.replace("\\", "/")
    return "library" if path.startswith(_STANDARD) or any(part in path for part in _PACKAGES) else "user"
