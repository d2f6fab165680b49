"""Where in the user's code something happened, through which library, and what the line says."""

import linecache
import os
import sys
import sysconfig
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType

import torch

_FRAMEWORKS = "accelerate", "transformers", "trl", "lightning", "pytorch_lightning"  # whose words a fix can speak
_COURSE = Path(__file__).parents[1] / "course_utils"
_WATCHED = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parent, _COURSE))
_ZOO = f"{_COURSE / 'zoo'}{os.sep}"  # buggy loops to watch, although they stand in a package of ours
_STANDARD = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen", "<eval_with_key>"
_PACKAGES = ("/site-packages/", "/dist-packages/")
SCRIPTS: set[str] = set()  # files that the command runs, wherever they lie: an installed package can be run with -m
_CELLS = ("/ipykernel_", "<ipython-input-")  # a cell's file has a name that changes with every session


class Place(str):
    """A line of the user's code, as "file:line".

    Attributes:
        via: The line of the library that the user's line called and that made the call; "" if there is none.
        framework: Whose loop that is, if a fix can speak its words.
        column: Where in the line the call begins, in bytes; 0 if nobody knows.
    """

    column: int = 0
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
    nearest = library = None
    while frame is not None:
        file = frame.f_code.co_filename
        if kind := _kind(file):
            here = file, *_position(frame.f_code, frame.f_lasti)
            nearest = nearest or here
            if kind == "user":
                return frame, *_way(here, nearest, library)
            library = here  # the last one is what the user has called
        frame = frame.f_back
    return None, *_way(nearest or ("", 0, 0), nearest, None)


@lru_cache(maxsize=10_000)
def _position(code: CodeType, instruction: int) -> tuple[int, int]:
    """Line and column of an instruction. A frame would search for its line each time."""
    line, _, column, _ = next(islice(code.co_positions(), instruction // 2, None))
    return line or code.co_firstlineno, column or 0


@lru_cache(maxsize=10_000)
def _way(user: tuple[str, int, int], nearest: tuple | None, library: tuple | None) -> tuple[Place, str]:
    place = Place(_text(user))
    place.column = user[-1]
    if library is not None:
        package = _inside_package(library[0]).partition("/")[0]
        place.via, place.framework = _text(library), package if package in _FRAMEWORKS else ""
    return place, f"{place} {_text(nearest)}" if nearest else ""


def _text(location: tuple[str, int, int]) -> str:
    return f"{location[0]}:{location[1]}" if location[0] else ""


def is_users(file: str) -> bool:
    return _kind(file) == "user"


@cache
def _kind(file: str) -> str:
    """Whose code a file is: "" for PyTorch's, Python's and our own, "package", or "user"."""
    if file.startswith(_ZOO) or file in SCRIPTS:
        return "user"
    if file.startswith(_WATCHED):
        return ""
    if _inside_package(file):
        return "package"
    return "" if file.startswith(_STANDARD) else "user"


def _inside_package(file: str) -> str:
    """An installed file's path from its package on, such as "transformers/trainer.py"; "" for any other file."""
    path = file.replace("\\", "/")
    return next((path.rpartition(part)[2] for part in _PACKAGES if part in path), "")


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
