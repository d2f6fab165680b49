"""The exercise of notebook 12: a training script of the learner's, audited in its own process."""

import atexit
import inspect
import json
import os
import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from course_utils.exercises.judging import Mistake, exercise, not_attempted

NONE = "none"  # the prediction that no error will be found


@dataclass(frozen=True)
class ScriptAudit:
    """What the auditor said about a script, beside what its author had predicted.

    Args:
        script: The script's path, or None where none is named yet.
        prediction: The name of a rule, or "none"; None where nothing is predicted yet.
        folder: Where the script is run.
        status: The auditor's exit status; None if it has not run.
        found: The level of each rule that it reported.
        judged: Whether it saw enough to judge.
        stopped: Whether the time was over before the script was.
        output: What the script and the auditor printed.
    """

    script: str | None
    prediction: str | None
    folder: str = "."
    status: int | None = None
    found: dict[str, str] = field(default_factory=dict)
    judged: bool = False
    stopped: bool = False
    output: str = ""


def audit_script(
    script: str | None, prediction: str | None, arguments: Sequence[str] = (), folder: str = ".", limit: float = 300.0
) -> ScriptAudit:
    """Runs a training script under the auditor, in a process of its own, and prints the report.

    The script stays as it is. It runs as `python script.py arguments` would, and writes again what
    it writes: checkpoints, logs. Nothing runs before a prediction is made.

    Args:
        script: Its path. With None nothing runs.
        prediction: The rule that the auditor will report as an error, or "none". With None nothing
            runs.
        arguments: What stands after the script's name on the command line.
        folder: Where the script is run.
        limit: Seconds after which the script is stopped, and judged by what it did.

    Returns:
        A `ScriptAudit`, for `check("own_script", ...)`.
    """
    from course_utils.ranks.script import run_python

    asked = ScriptAudit(script and str(Path(script).expanduser()), prediction, str(folder))
    try:
        _require_question(asked)
    except Mistake:
        return asked
    with tempfile.TemporaryDirectory() as scratch:
        report, path = Path(scratch) / "report.json", Path(asked.script)
        command = ["-m", "gradaudit", "--json", report, path, *arguments]
        status, output, stopped = run_python(*command, title=f"auditing {path.name}", limit=limit, cwd=folder)
        said = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {"findings": [], "judged": False}
    _, head, text = output.rpartition("--- audit of ")  # before it is what the script printed
    print((head + text).replace(f"{Path(folder, path).absolute().parent}{os.sep}", "").strip())
    found = {finding["rule"]: finding["level"] for finding in reversed(said["findings"])}
    return replace(asked, status=status, found=found, judged=said["judged"], stopped=stopped, output=output)


def public_loop(number: int) -> str:
    """Writes one of the zoo's loops to a file, for want of a script, and returns the file's path.

    Args:
        number: Which one. The numbers say nothing about the bug.
    """
    from course_utils.zoo import ZOO

    specimen = ZOO[random.Random(0).sample(sorted(ZOO), len(ZOO))[number]]
    lines = inspect.getsource(inspect.getmodule(specimen.loop)).splitlines()
    imports = "\n".join(line for line in lines if line.startswith(("import", "from")) and "registry" not in line)
    folder = Path(tempfile.mkdtemp(prefix="course-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / f"loop_{number}.py"
    path.write_text(f"{imports}\n\n\n{specimen.listing()}\n\nfor loss in loop():\n    pass\n", encoding="utf-8")
    return str(path)


@exercise(takes=ScriptAudit, praise="Done.")  # the prediction may have been another one
def own_script(answer):
    from course_utils.ranks.script import last_words
    from gradaudit.__main__ import SCRIPT_FAILED

    _require_question(answer)
    if answer.status is None:
        raise not_attempted("the auditor has not run yet.")
    if answer.status == SCRIPT_FAILED and not answer.stopped:
        hint = "Does the script run without the auditor, from the same folder, with the same arguments?"
        raise Mistake("script-failed", f"the script failed. Its last words: {last_words(answer.output)}", hint)
    if not answer.judged:
        hint = "What the auditor printed says why. If the time was over, give it more: audit_script(..., limit=900)."
        message = f"the auditor saw nothing that it could judge (exit status {answer.status})."
        raise Mistake("not-judged", message, hint)
    found = answer.found
    agree = answer.prediction in found or (answer.prediction == NONE and "error" not in found.values())
    what = ", ".join(f"{rule} ({found[rule]})" for rule in sorted(found)) or NONE
    verdict = "as you said" if agree else "which is something else: look at the lines that it names"
    return f"you predicted {answer.prediction}, the auditor found {what}, {verdict}; exit status {answer.status}."


def _require_question(answer: ScriptAudit) -> None:
    """Raises a `Mistake` unless there are a script and a prediction."""
    from gradaudit.compare import RULES
    from gradaudit.text import did_you_mean

    if answer.script is None or answer.script is ...:
        raise not_attempted("no script is named yet.")
    if not (Path(answer.folder) / answer.script).is_file():
        hint = "A relative path begins in the notebook's folder. Try the absolute one."
        raise Mistake("no-such-file", f"there is no file {answer.script}.", hint)
    if answer.prediction in (None, "", ...):
        hint = "Read your loop first: where does it zero, divide, clip and step? Then name a rule, or none."
        message = 'predict first: the name of a rule, or "none". Nothing has run yet.'
        raise Mistake("no-prediction", message, hint)
    names = [*RULES, NONE]
    if answer.prediction not in names:
        meant = did_you_mean(str(answer.prediction), names, f"there are {', '.join(names)}.")
        hint = "`gradaudit --explain` lists the names of the rules."
        raise Mistake("unknown-rule", f"no rule is called {answer.prediction!r}: {meant}", hint)
