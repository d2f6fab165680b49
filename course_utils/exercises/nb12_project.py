"""The exercises of notebook 12: bugs that are read, shares that are solved for, a script of the learner's own."""

import inspect
import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from course_utils.exercises.judging import Mistake, exercise, not_attempted, returned, same
from course_utils.ranks.script import last_words, run_python
from gradaudit.rules import RULES

BUGS = set("acdfh")
NO_BUG = {  # why not, by its letter
    "b": "`enumerate` counts from 1, so the first step comes after N micro-batches.",
    "e": "`zero_grad()` follows each step, and `loss` begins again at 0.",
    "g": "`update()` comes once in a window, after its step.",
}
_FOLDERS = []  # of public loops: they go when Python ends


def audit_script(script, prediction, arguments=(), limit=300.0):
    """Runs a training script under the auditor, in a process of its own, and prints the report.

    The script stays as it is. It runs as `python script.py arguments` would, with one thread unless
    `OMP_NUM_THREADS` is set, and writes again what it writes: checkpoints, logs. Nothing runs
    before a prediction is made.

    Args:
        script: Its path. With None nothing runs.
        prediction: The rule that the auditor will report as an error, or "none". With None nothing
            runs.
        arguments: What stands after the script's name on the command line.
        limit: Seconds after which the script is stopped, and judged by what it did.

    Returns:
        For `check("own_script", ...)` the prediction; what `run_python` returned, or None if
        nothing has run; and the report, as the auditor's JSON.
    """
    if script in (None, ...) or prediction not in (*RULES, "none"):
        return prediction, None, None
    path = Path(script).expanduser().absolute()
    with TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = ["-m", "gradaudit", "--output-format", "json", "--output", report, path, *arguments]
        ended = run_python(*command, title=f"auditing {path.name}", limit=limit)
        said = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {"judged": False}
    _, head, text = ended[1].rpartition("--- audit of ")  # before it is what the script printed
    print((head + text).replace(str(path), path.name).strip())
    return prediction, ended, said


def public_loop(number):
    """Writes one of the zoo's loops to a file, for want of a script, and returns the file's path.

    Args:
        number: Which one. The numbers say nothing about the bug.
    """
    from course_utils.zoo import ZOO

    specimen = ZOO[random.Random(0).sample(sorted(ZOO), len(ZOO))[number]]
    lines = inspect.getsource(inspect.getmodule(specimen.loop)).splitlines()
    imports = "\n".join(line for line in lines if line.startswith(("import", "from")) and "registry" not in line)
    _FOLDERS.append(TemporaryDirectory(prefix="course-"))
    path = Path(_FOLDERS[-1].name, f"loop_{number}.py")
    made = specimen.props.__name__
    imports += f"\nfrom {specimen.props.__module__} import {made}"
    call = f"loop(*{made}())" if specimen.takes else "loop()"
    path.write_text(f"{imports}\n\n\n{specimen.listing()}\n\nfor loss in {call}:\n    pass\n", encoding="utf-8")
    return str(path)


@exercise("", takes=tuple, praise="Done.")  # the prediction may have been another one
def own_script(answer):
    prediction, ended, report = answer
    if ended is None:
        raise not_attempted('name a script, and predict "none" or a rule that `gradaudit --explain` lists.')
    status, output, stopped = ended
    if not report["judged"] or (status == 3 and not stopped):
        hint = "Does the script run without the auditor? If the time was over: audit_script(..., limit=900)."
        raise Mistake("not-judged", f"the auditor ended with status {status}: {last_words(output)}", hint)
    found = {finding["rule"]: finding["level"] for finding in reversed(report["findings"])}
    agree = prediction in found or (prediction == "none" and "error" not in found.values())
    what = ", ".join(f"{rule} ({found[rule]})" for rule in sorted(found)) or "none"
    verdict = "as you said" if agree else "which is something else: look at the lines that it names"
    return f"you predicted {prediction}, the auditor found {what}, {verdict}; exit status {status}."


@exercise("Five in twelve lines; the sixth is about when the script saves.", takes=str)
def five_bugs(answer):
    letters = {letter for letter in answer.lower() if letter.isalpha()}
    if not letters:
        raise not_attempted("write the letters of the bugs that you see.")
    for letter in sorted(letters - BUGS):
        why = NO_BUG.get(letter, "no statement has this letter.")
        raise Mistake("no-bug", f"{letter}: {why}", "Read the loop for N = 4 and six micro-batches, line by line.")
    if missing := len(BUGS - letters):
        hint = (
            "Follow one token of a long micro-batch, and one of the last. Or go on: the steps below measure each bug."
        )
        raise Mistake("bugs-left", f"what you name are bugs; {missing} of the five you don't name.", hint)


ONES, BY_TOKENS = [[1.0] * 4 + [0.0] * 6, [0.0] * 4 + [1.0] * 4 + [0.0] * 2], [[0.5, 0.2, 0.3, 0.0], [0.0] * 3 + [1.0]]
SOLVE = (
    "With S = find_shares(updates, of_each), S @ of_each should be updates. Which function of torch.linalg solves this?"
)


@exercise("Three tables: equal shares, unequal ones, and a gradient that is used twice.")
def find_shares(answer):
    generator = torch.Generator().manual_seed(0)
    for rows in (ONES, BY_TOKENS, [[0.5, 0.5, 0.0], [0.5, 0.5, 1.0]]):
        table = torch.tensor(rows)
        of_each = torch.randn(table.shape[1], 50, generator=generator) + 1  # no two are orthogonal
        found = returned(answer(table @ of_each, of_each.clone()), "a tensor with a row for each update")
        hint = "A row is an update, a column a micro-batch."
        same("the tensor's shape", tuple(getattr(found, "shape", ())), tuple(table.shape), "wrong-shape", hint)
        same("the shares", found, table, "not-the-shares", SOLVE)
