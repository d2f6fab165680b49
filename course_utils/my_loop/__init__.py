"""The loop that grows through the course: the learner's, in `my_loop.py`, and the course's own.

`after_NN.py` is the loop as notebook NN leaves it, as a learner's file could be.
"""

import builtins
import dis
import inspect
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from itertools import count
from pathlib import Path
from textwrap import dedent
from types import CodeType, ModuleType
from typing import Any, NamedTuple

FILE = Path("my_loop.py")  # beside the notebook, in which a kernel runs
STAGES = ("00", "04", "05", "06", "08", "09", "10")  # the notebooks that extend the loop
IMPORT = "from course_utils.my_loop.after_05 import windows"
_numbers = count()
_unwritten = ""  # what the file would hold, if it could be written
_HEAD = re.compile(r"# The loop after (\d\d), kept by the course\.(?: New lines:([\d ]*)\.?)?\n")


class Loop(NamedTuple):
    """A loop as text.

    Attributes:
        after: The notebook after which it stands.
        text: Its source, with all that it needs.
        new: The numbers of the lines that this notebook has added, from 1.
    """

    after: str
    text: str
    new: list[int]


class NotAlone(Exception):
    """The loop needs something that its file can't hold."""


def is_off() -> bool:
    """Whether nothing is kept or read, as in a test: no file may change what a notebook shows."""
    return "PYTEST_VERSION" in os.environ or os.environ.get("MY_LOOP") == "off"


def of_the_course(after: str) -> Loop:
    """The course's loop."""
    return Loop(after, text := _text(after), _new(text, _before(after) or text))


def of_the_learner() -> Loop | None:
    """What `my_loop.py` holds, or should hold; None if nothing is kept.

    Raises:
        ValueError: If its first line isn't the course's.
    """
    if is_off() or not (_unwritten or FILE.exists()):
        return None
    text = _unwritten or FILE.read_text(encoding="utf-8-sig")  # Windows may have put a mark before it
    head = _HEAD.match(text)
    if not head or head[1] not in STAGES:
        raise ValueError("its first line should say after which notebook it stands")
    return Loop(head[1], text[head.end() :], [int(number) for number in (head[2] or "").split()])


def keep(loop: Loop) -> str:
    """Writes a learner's loop to `my_loop.py`, whole and at once, or keeps it in this kernel.

    Args:
        loop: Its text stands alone; which lines are new is found here.

    Returns:
        Where it is kept, in words.

    Raises:
        ValueError: If the file holds a loop of a later notebook, or isn't the course's.
        OSError: If there is a file that can't be read.
    """
    global _unwritten
    own = of_the_learner() or loop
    if STAGES.index(own.after) > STAGES.index(loop.after):
        raise ValueError(f"{FILE} holds your loop after {own.after}; to start again, delete it")
    old = own.text
    if own.after == loop.after:  # answered again: what stood before are the lines that weren't new
        old = "\n".join(line for number, line in enumerate(old.splitlines(), start=1) if number not in own.new)
    new = _new(loop.text, old if own is not loop else _before(loop.after) or loop.text)
    added = f" New lines: {' '.join(map(str, new))}." if new else ""
    _unwritten = f"# The loop after {loop.after}, kept by the course.{added}\n{loop.text}"
    draft = FILE.with_suffix(".new")
    try:
        draft.write_text(_unwritten, encoding="utf-8")
        draft.replace(FILE)
    except OSError as error:
        return f"in this kernel alone, because `{FILE}` can't be written ({error})"
    _unwritten = ""
    return f"in `{FILE}`, beside this notebook"


def train_of(loop: Loop) -> Callable:
    """The function that a loop's text defines, with its lines numbered as in the file."""
    file, names = f"<the loop after {loop.after} {next(_numbers)}>", {}
    text = f"\n{loop.text}\ntrain"  # raises a NameError where there is none
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names)
    return names["train"]


def standalone(answer: Callable) -> str:
    """The source of a function, with the imports and the functions of the notebook that it uses.

    Raises:
        NotAlone: If it uses what neither torch nor Python's library has and the notebook doesn't
            define as a function.
    """
    if not inspect.isfunction(answer) or answer.__name__ == "<lambda>":
        raise NotAlone("no `def` of its own")
    imports: set[str] = set()
    functions: dict[str, str] = {}
    _gather(answer, imports, functions)
    parts = ["\n".join(sorted(imports)), *reversed(functions.values())]  # each before the one that calls it
    if answer.__name__ != "train":
        parts.append(f"train = {answer.__name__}")
    return "\n\n\n".join(parts).lstrip() + "\n"


def _gather(answer: Callable, imports: set[str], functions: dict[str, str]) -> None:
    """Adds a function, and then what it needs."""
    if answer.__code__.co_freevars:
        raise NotAlone(f"`{answer.__code__.co_freevars[0]}`, which is defined in another function")
    functions[answer.__name__] = source = dedent(inspect.getsource(answer)).strip()
    for name in dict.fromkeys(_globals(compile(source, "", "exec"))):  # its decorators, defaults and types, too
        if name in functions or (hasattr(builtins, name) and name not in {*answer.__globals__, "display"}):
            continue
        if name not in answer.__globals__:
            raise NotAlone(f"`{name}`, which isn't defined")
        value = answer.__globals__[name]
        home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
        own = getattr(value, "__name__", "")
        found = isinstance(value, ModuleType) or getattr(sys.modules.get(home), own, None) is value
        if found and home.partition(".")[0] in {"torch", *sys.stdlib_module_names}:
            imports.add(_import(name, value, home))
        elif inspect.isfunction(value) and value.__module__ == answer.__module__:
            _gather(value, imports, functions)
        else:
            raise NotAlone(f"`{name}`, which is neither in torch nor a function of your own")


def _import(name: str, value: Any, home: str) -> str:
    own = home if isinstance(value, ModuleType) else value.__name__
    line = f"import {home}" if own == home else f"from {home} import {own}"
    return line if name == own else f"{line} as {name}"


def _globals(code: CodeType) -> Iterator[str]:
    """The global names that a function's code reads, also in functions inside of it."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
        elif isinstance(step.argval, CodeType):
            yield from _globals(step.argval)


def _text(after: str) -> str:
    """The course's loop, with the `windows` that it imports."""
    text = (Path(__file__).parent / f"after_{after}.py").read_text(encoding="utf-8")
    if IMPORT in text:
        text = text.replace(IMPORT, "\n" + _text("05").partition("\n\n\n")[0])
    return text.lstrip()


def _before(after: str) -> str:
    """The course's loop of the stage before, if there is one."""
    return _text(STAGES[STAGES.index(after) - 1]) if after != STAGES[0] else ""


def _new(text: str, old: str) -> list[int]:
    was, lines = ([line.partition("#")[0].strip() for line in each.splitlines()] for each in (old, text))
    changes = SequenceMatcher(None, was, lines, autojunk=False).get_opcodes()
    return [k + 1 for tag, _, _, *part in changes if tag != "equal" for k in range(*part) if lines[k]]
