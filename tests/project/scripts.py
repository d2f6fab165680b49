"""The project's script as it is handed, with single fixes, and as the notebook solves it."""

import re
from pathlib import Path

import course_utils.project
from course import NOTEBOOKS
from notebooks import tags

HANDED = (Path(course_utils.project.__file__).parent / "train.py").read_text(encoding="utf-8")
LOOP = re.compile(r"^def train_epoch\(.*?(?=\n\n\n)", flags=re.M | re.S)

_ADD = "            loss = loss + F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())\n"
_BACKWARD = "            scaler.scale(loss).backward()\n"
_UNSCALE = "            scaler.unscale_(optimizer)\n"
_OF_WINDOW = """\
            first = (number - 1) // options.window * options.window
            window = [int((t != -100).sum()) for _, t in batches[first : first + options.window]]
            share = len(window) * int((targets != -100).sum()) / sum(window)
            loss = loss + share * F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
"""
FIXES = {  # of one bug each: what to replace, and by what
    "memory": [(_BACKWARD, ""), (_ADD, _ADD.replace("loss + ", "") + _BACKWARD[4:])],
    "division": [(_BACKWARD, _BACKWARD.replace("(loss)", "(loss / options.window)"))],
    "tail": [("number % options.window == 0", "number % options.window == 0 or number == len(batches)")],
    "tokens": [(_ADD, _OF_WINDOW)],
    "scaler": [(_UNSCALE, ""), (_BACKWARD, _BACKWARD + _UNSCALE)],
    "resume": [("number % options.save_every == 0", "number % options.window == 0")],
}


def edited(*edits: tuple[str, str]) -> str:
    """The handed script with some lines replaced."""
    source = HANDED
    for old, new in edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


def solved() -> str:
    """The handed script with the function that the notebook gives as its solution."""
    cells = [cell.source for cell in NOTEBOOKS["12_project"].code if "solution" in tags(cell)]
    (solution,) = [source for source in cells if "def train_epoch" in source]
    (added,) = re.findall(r"^from contextlib .*\n", solution, flags=re.M)
    assert len(LOOP.findall(HANDED)) == 1
    with_function = LOOP.sub(lambda _: solution[solution.index("def ") :], HANDED)
    return with_function.replace("import argparse\n", f"import argparse\n{added}", 1)
