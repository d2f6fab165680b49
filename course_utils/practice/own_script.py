"""The exercise of the kind "audit your own script": any training script, audited in a process of its own."""

import atexit
import inspect
import json
import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from course_utils.practice.bench import Mistake

CANNOT_RUN, SCRIPT_FAILED, NOTHING_JUDGED = 2, 3, 4  # exit statuses of `gradaudit`
NONE = "none"  # the prediction that no error will be found


@dataclass(frozen=True)
class ScriptAudit:
    """What the auditor said about a script, beside what its author had predicted.

    Args:
        script: The script's path, or None where none is named yet.
        prediction: The name of a rule, or "none"; None where nothing is predicted yet.
        folder: Where the script is run.
        status: The auditor's exit status; None if it has not run.
        findings: As the auditor writes them to JSON.
        lanes: For each optimizer that was seen, the micro-batches in its window.
        unseen: What the auditor didn't see, in clauses.
        stopped: Whether the time was over before the script was.
        output: The end of what the script and the auditor printed.
    """

    script: str | None
    prediction: str | None
    folder: str = "."
    status: int | None = None
    findings: list[dict] = field(default_factory=list)
    lanes: dict = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    stopped: bool = False
    output: str = ""

    def __str__(self) -> str:
        lines = []
        for finding in self.findings:
            file, _, line = finding["where"].rpartition(":")
            where = f", {Path(file).name}, line {line}" if file else ""
            lines += [f"{finding['level']}: {finding['rule']}{where}", f"  {finding['message']}"]
            lines.append(f"  fix: {finding['fix']}")
        if self.status == NOTHING_JUDGED:
            lines.append(f"Could not judge: {'; '.join(self.unseen)}.")
        return "\n".join(lines or ["Nothing was found."])


def audit_script(
    script: str | None, prediction: str | None, arguments: Sequence[str] = (), folder: str = ".", limit: float = 300.0
) -> ScriptAudit:
    """Runs a training script under the auditor, in a process of its own, and prints what was found.

    The script stays as it is. It runs as `python script.py arguments` would, and everything that it writes, it writes
    again: checkpoints, logs. Nothing runs before a prediction is made.

    Args:
        script: Its path. With None nothing runs.
        prediction: The name of the rule that the auditor will report as an error, or "none". With None nothing runs.
        arguments: What stands after the script's name on the command line.
        folder: Where the script is run.
        limit: Seconds after which the script is stopped. A few windows are enough; what ran until then is judged.

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
        report, title = Path(scratch) / "report.json", f"auditing {Path(asked.script).name}"
        command = ["-m", "gradaudit", "--json", report, asked.script, *arguments]
        status, output, stopped = run_python(*command, title=title, limit=limit, cwd=folder)
        said = json.loads(report.read_text(encoding="utf-8")) if report.exists() else None
    audited = replace(asked, status=status, stopped=stopped, output=output[-2000:])
    if said:
        audited = replace(audited, findings=said["findings"], lanes=said["window"], unseen=said["unseen"])
    print(audited if said else audited.output)
    return audited


def public_loop(number: int) -> str:
    """Writes one of the zoo's loops to a file, for anyone who has no script at hand, and returns the file's path.

    Args:
        number: Which one. The numbers say nothing about the bug.
    """
    from course_utils.zoo import ZOO

    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(ZOO):
        raise ValueError(f"expected a whole number from 0 to {len(ZOO) - 1}, got {number!r}")
    specimen = ZOO[random.Random(0).sample(sorted(ZOO), len(ZOO))[number]]
    module = inspect.getsource(inspect.getmodule(specimen.buggy.__wrapped__))
    head = module.partition("@Specimen")[0].partition('"""\n\n')[2].strip()
    imports = "\n".join(line for line in head.splitlines() if "zoo.registry" not in line)
    folder = Path(tempfile.mkdtemp(prefix="course-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / f"loop_{number}.py"
    path.write_text(f"{imports}\n\n\n{specimen.listing()}\n\nfor loss in loop():\n    pass\n", encoding="utf-8")
    return str(path)


def judge_own_script(answer: ScriptAudit) -> str:
    """Says how a prediction compares with what the auditor found; a `Mistake` where there is nothing to compare."""
    from course_utils.ranks.script import last_words

    _require_question(answer)
    if answer.status is None:
        raise Mistake("not-attempted", "the auditor has not run yet.")
    if answer.stopped and not answer.lanes:
        raise Mistake("stopped-too-early", "the script was stopped before the auditor had seen an update.")
    if answer.status not in range(NOTHING_JUDGED + 1) or answer.status == CANNOT_RUN:
        says = f"the auditor could not run (exit status {answer.status}): {last_words(answer.output)}"
        raise Mistake("cannot-run", says)
    if answer.status == SCRIPT_FAILED and not answer.stopped:
        raise Mistake("script-failed", f"the script failed. Its last words: {last_words(answer.output)}")
    if answer.status == NOTHING_JUDGED or not answer.lanes:
        why = "; ".join(answer.unseen) or "no optimizer made a step while it watched"
        raise Mistake("no-training", f"the auditor could not judge: {why}.")
    found = {finding["rule"]: finding["level"] for finding in reversed(answer.findings)}
    no_error = "error" not in found.values()
    agree = answer.prediction in found or (answer.prediction == NONE and no_error)
    what = ", ".join(f"{rule} ({found[rule]})" for rule in sorted(found)) or NONE
    verdict = "as you said" if agree else "which is something else: look at the lines that it names"
    return f"you predicted {answer.prediction}, the auditor found {what}, {verdict}; exit status {answer.status}."


def _require_question(answer: ScriptAudit) -> None:
    """What has to be there before the auditor runs: a script, and a prediction."""
    from gradaudit.compare import RULES

    if answer.script is None or answer.script is ...:
        raise Mistake("not-attempted", "no script is named yet.")
    if not (Path(answer.folder) / answer.script).is_file():
        raise Mistake("no-such-file", f"there is no file {answer.script}.")
    if answer.prediction in (None, "", ...):
        raise Mistake("no-prediction", 'predict first: the name of a rule, or "none". Nothing has run yet.')
    names = [*RULES, NONE]
    if answer.prediction not in names:
        close = [name for name in names if str(answer.prediction) in name]
        close = close or get_close_matches(str(answer.prediction), names, 1, 0.4)
        hint = f", did you mean {close[0]!r}?" if close else f", only {', '.join(RULES)} and {NONE}."
        raise Mistake("unknown-rule", f"no rule is called {answer.prediction!r}{hint}")
