"""The exercise of the kind "audit your own script": any training script, audited in a process of its own."""

import atexit
import inspect
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from course_utils.practice.bench import Mistake

CLEAN, FOUND, CANNOT_RUN, SCRIPT_FAILED, NOTHING_JUDGED = range(5)  # the exit statuses of the auditor's command
MEANING = {
    CLEAN: "exit status 0: the run was judged, and no error was found",
    FOUND: "exit status 1: the script ran to its end, and at least one error was found",
    CANNOT_RUN: "exit status 2: the auditor could not run, or failed while the training went on",
    SCRIPT_FAILED: "exit status 3: the script failed or was stopped, and the findings cover what ran before that",
    NOTHING_JUDGED: "exit status 4: nothing could be judged",
}
NONE = "none"  # the prediction that no error will be found

_HOUSE = Path(__file__).parents[2]  # so that the other process finds this package where it is not installed
_PAUSE = 0.2  # seconds between two looks at the other process
_GRACE = 10.0  # seconds in which a script that is asked to stop may still report; it is asked three times


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

    @property
    def rules(self) -> list[str]:
        """The rules of the errors that were found."""
        return list(dict.fromkeys(finding["rule"] for finding in self.findings if finding["level"] == "error"))

    def __str__(self) -> str:
        lines = []
        for finding in self.findings:
            file, _, line = finding["where"].rpartition(":")
            where = f", {Path(file).name}, line {line}" if file else ""
            lines += [
                f"{finding['level']}: {finding['rule']}{where}",
                f"  {finding['message']}",
                f"  fix: {finding['fix']}",
            ]
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
    asked = ScriptAudit(script and str(Path(script).expanduser()), prediction, str(folder))
    try:
        _require_question(asked)
    except Mistake:
        return asked
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = [
            sys.executable,
            "-m",
            "gradaudit",
            "--json",
            str(report),
            asked.script,
            *map(str, arguments),
        ]
        status, stopped, output = _run(command, folder, limit, f"auditing {Path(asked.script).name}")
        text = report.read_text(encoding="utf-8") if report.exists() else ""
    said = json.loads(text) if text else {"findings": [], "window": {}, "unseen": []}
    audited = replace(
        asked,
        status=status,
        findings=said["findings"],
        lanes=said["window"],
        unseen=said["unseen"],
        stopped=stopped,
        output=output[-2000:],
    )
    print(audited if text else output[-2000:])
    return audited


def _run(command: list[str], folder: str, limit: float, title: str) -> tuple[int, bool, str]:
    """The exit status of a command, whether it had to be stopped, and what it printed; a line shows that it runs."""
    from tqdm import tqdm

    paths = [str(_HOUSE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    began, stopped = time.monotonic(), False
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=printed, stderr=subprocess.STDOUT)
        try:
            with tqdm(desc=title, bar_format="{desc}: {elapsed}{postfix}") as line:
                while process.poll() is None:
                    stopped = time.monotonic() - began > limit
                    if stopped:
                        _stop(process)
                        break
                    _wait(process)
                    line.update()
        finally:  # also after an interrupt
            _stop(process)
        printed.seek(0)
        return process.returncode, stopped, printed.read().decode(errors="replace")


def _wait(process: subprocess.Popen) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(_PAUSE)


def _stop(process: subprocess.Popen) -> None:
    """Asks a process to end, which lets the auditor report, and ends it if it does not."""
    for _ in range(3):  # where Python ignores exceptions, in a weak reference's callback, it loses the request
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
    if process.poll() is None:
        process.kill()
        process.wait()


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
    head = module.partition("@specimen")[0].partition('"""\n\n')[2].strip()
    imports = "\n".join(line for line in head.splitlines() if "zoo.registry" not in line)
    folder = Path(tempfile.mkdtemp(prefix="course-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / f"loop_{number}.py"
    path.write_text(f"{imports}\n\n\n{specimen.listing()}\n\nfor loss in loop():\n    pass\n", encoding="utf-8")
    return str(path)


def judge_own_script(answer: ScriptAudit) -> str:
    """Says how a prediction compares with what the auditor found; a `Mistake` where there is nothing to compare."""
    _require_question(answer)
    if answer.status is None:
        raise Mistake("not-attempted", "the auditor has not run yet.")
    if answer.stopped and not answer.lanes:
        raise Mistake("stopped-too-early", "the script was stopped before the auditor had seen an update.")
    if answer.status not in MEANING or answer.status == CANNOT_RUN:
        last = answer.output.strip().rpartition("\n")[2]
        raise Mistake("cannot-run", f"{MEANING.get(answer.status, f'exit status {answer.status}')}: {last}")
    if answer.status == SCRIPT_FAILED and not answer.stopped:
        raise Mistake("script-failed", f"{MEANING[SCRIPT_FAILED]}. Its last words: {_last_words(answer.output)}")
    if answer.status == NOTHING_JUDGED:
        raise Mistake("no-training", f"the auditor could not judge: {'; '.join(answer.unseen)}.")
    if not answer.lanes:
        raise Mistake("no-training", "the auditor saw no update: no optimizer made a step while it watched.")
    found = {finding["rule"]: finding["level"] for finding in reversed(answer.findings)}
    agree = answer.prediction in (found or {NONE: ""}) or (answer.prediction == NONE and not answer.rules)
    what = ", ".join(f"{rule} ({found[rule]})" for rule in sorted(found)) or NONE
    verdict = "as you said" if agree else "which is something else: look at the lines that it names"
    return f"you predicted {answer.prediction}, the auditor found {what}, {verdict}; {MEANING[answer.status]}."


def _require_question(answer: ScriptAudit) -> None:
    """What has to be there before the auditor runs: a script, and a prediction."""
    from gradaudit.rules import RULES

    if answer.script is None or answer.script is ...:
        raise Mistake("not-attempted", "no script is named yet.")
    if not (Path(answer.folder) / answer.script).is_file():
        raise Mistake("no-such-file", f"there is no file {answer.script}.")
    if answer.prediction in (None, "", ...):
        raise Mistake("no-prediction", 'predict first: the name of a rule, or "none". Nothing has run yet.')
    if answer.prediction not in (*RULES, NONE):
        names = [*RULES, NONE]
        close = [name for name in names if str(answer.prediction) in name]
        close = close or get_close_matches(str(answer.prediction), names, 1, 0.4)
        hint = f", did you mean {close[0]!r}?" if close else f", only {', '.join(RULES)} and {NONE}."
        raise Mistake("unknown-rule", f"no rule is called {answer.prediction!r}{hint}")


def _last_words(output: str) -> str:
    """The error that ended a script, from what it and the auditor printed."""
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return (errors or lines or ["nothing"])[-1]
