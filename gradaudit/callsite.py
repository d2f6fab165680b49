"""Where in the user's code something happened, through which library, and what the line says."""

import contextlib
import linecache
import os
import sys
import sysconfig
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, FrameType

import torch

FRAMEWORKS = ("pytorch_lightning", "lightning", "accelerate", "transformers", "trl")  # each may call those before it
_COURSE = Path(__file__).parents[1] / "course_utils"
_WATCHED = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parent, _COURSE))
_ZOO = f"{_COURSE / 'zoo'}{os.sep}"  # buggy loops to watch, although they stand in a package of ours
_STANDARD = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))
_PACKAGES = ("/site-packages/", "/dist-packages/")
SCRIPTS: set[str] = set()  # files that the command runs, wherever they lie: an installed package can be run with -m
_MOST_WAYS = 10_000  # that are remembered, from a line of the user's
_CELLS = ("/ipykernel_", "<ipython-input-")  # a cell's file has a name that changes with every session


class Place(str):
    """A line of the user's code, as "file:line".

    Attributes:
        via: The line of the library that the user's line called and that made the call; "" if there is none.
        framework: Whose loop that is, if it is one of `FRAMEWORKS`.
    """

    via: str = ""
    framework: str = ""


def caller_location() -> tuple[Place, str, tuple[int, ...]]:
    """File and line of the user's code that led here; and a name for the way from there, through any library.

    Two calls inside a library may come from one line of the user's, and two lines of the user's may come to one call
    inside a library: only both together tell what belongs together. The last value tells apart from where the user's
    function and its caller were called, since a helper may call backward for any loss.
    """
    frame, place, line = _users_frame(sys._getframe(1))
    if frame is None:
        return place, line, ()
    caller = frame.f_back or frame
    return place, line, (frame.f_lasti, caller.f_lasti, (caller.f_back or caller).f_lasti)


def where() -> Place:
    """The first value of `caller_location` alone, which takes less time."""
    return _users_frame(sys._getframe(1))[1]


def _users_frame(frame: FrameType | None) -> tuple[FrameType | None, Place, str]:
    """The nearest frame of the user's code, where it is, and the name for the way from there to `frame`."""
    nearest, library, best = None, None, -1
    while frame is not None:
        code = frame.f_code
        if kind := _kinds[file := code.co_filename]:
            if kind == "user" and nearest is None:  # as in most calls
                known = _direct_ways.get((id(code), frame.f_lasti)) or _note_direct_way(code, frame)
                return frame, known[1], known[2]
            here = file, frame.f_lineno
            nearest = nearest or here
            if kind == "user":
                return frame, *_way(here, nearest, library)
            if (rank := _rank(file)) > best:  # of Accelerate inside a Trainer, the Trainer is what the user knows
                library, best = here, rank
        frame = frame.f_back
    return None, *_way(nearest or ("", 0), nearest, None)


def _note_direct_way(code: CodeType, frame: FrameType) -> tuple[CodeType, Place, str]:
    """To find the line of an instruction takes longer than all else here, so it is done once for each."""
    if len(_direct_ways) >= _MOST_WAYS:
        _direct_ways.clear()
    here = code.co_filename, frame.f_lineno
    known = _direct_ways[id(code), frame.f_lasti] = code, *_way(here, here, None)
    return known


@lru_cache(maxsize=_MOST_WAYS)
def _way(user: tuple[str, int], nearest: tuple[str, int], library: tuple[str, int] | None) -> tuple[Place, str]:
    place = Place(_text(user))
    if library is not None:
        place.via, place.framework = _text(library), _framework(library[0])
    return place, f"{place} {_text(nearest)}" if nearest else ""


def _text(location: tuple[str, int]) -> str:
    return f"{location[0]}:{location[1]}" if location[0] else ""


def is_users(file: str) -> bool:
    return _kinds[file] == "user"


class _Kinds(dict):
    """Of each file, whose code it is: "" for PyTorch's and our own, "library", or "user".

    A dictionary, since it's asked of every frame from here to the user's code, at each backward call and each step.
    """

    def __missing__(self, file: str) -> str:
        self[file] = kind = self._of(file)
        return kind

    @staticmethod
    def _of(file: str) -> str:
        if file.startswith(_ZOO) or file in SCRIPTS:
            return "user"
        if file.startswith((*_WATCHED, "<frozen", "<eval_with_key>")) or file == contextlib.__file__:
            return ""
        path = file.replace("\\", "/")
        return "library" if path.startswith(_STANDARD) or any(part in path for part in _PACKAGES) else "user"


_kinds = _Kinds()
_direct_ways: dict[tuple[int, int], tuple[CodeType, Place, str]] = {}  # each keeps its code alive, and so the id


@cache
def _rank(file: str) -> int:
    """How much a library's file says about whose loop it is: the standard library says nothing."""
    if _inside_package(file) is None:
        return -1
    framework = _framework(file)
    return FRAMEWORKS.index(framework) + 1 if framework else 0


@cache
def _framework(file: str) -> str:
    package = (_inside_package(file) or "").partition("/")[0]
    return package if package in FRAMEWORKS else ""


def _inside_package(file: str) -> str | None:
    """An installed file's path from its package on, such as "transformers/trainer.py"."""
    path = file.replace("\\", "/")
    return next((path.rpartition(part)[2] for part in _PACKAGES if part in path), None)


# For people


def short(place: str) -> str:
    """A location as a report shows it.

    >>> short(str(Path.cwd() / "train.py:12")), short("/venv/lib/python3.11/site-packages/trl/trainer.py:9")
    ('train.py:12', 'trl/trainer.py:9')
    >>> short("/run/ipykernel_812/90210.py:3")
    'notebook cell, line 3'
    """
    file, _, line = place.rpartition(":")
    if not file:
        return place
    return f"notebook cell, line {line}" if cell_of(file) else f"{_inside_package(file) or from_here(file)}:{line}"


def from_here(file: str) -> Path:
    """A file's path as other tools look for it: from the working directory, if it lies below."""
    path = Path(file)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def cell_of(file: str) -> str:
    """The cell of a notebook that a file stands for, by its execution count if IPython knows it; "" of other files.

    >>> cell_of("/run/ipykernel_812/90210.py"), cell_of("train.py")
    ('notebook cell', '')
    """
    if not any(part in file for part in _CELLS):
        return ""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    count = getattr(getattr(shell, "compile", None), "_filename_map", {}).get(file)
    return f"cell {count}" if count else "notebook cell"


def source(place: str) -> str:
    """The text of a line of code; "" if it cannot be read."""
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdecimal() else ""
