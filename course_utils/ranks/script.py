"""Runs a script on several ranks of this machine with `torchrun`, as a cluster would."""

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tqdm import tqdm

_SHOWN = 25  # lines of output in an error message
_GRACE = 40.0  # seconds that torchrun gets to end its ranks: it asks them to end, and kills them after 30


class ScriptError(RuntimeError):
    """A script failed on its ranks or took too long: `output` is all that the ranks and `torchrun` printed."""

    def __init__(self, message: str, output: str):
        super().__init__(f"{message}; the end of its output:\n{_tail(output)}")
        self.output = output


def torchrun(script: str | Path, *arguments: object, n: int = 2, timeout: float = 30.0, cwd: str | Path = ".") -> str:
    """Runs `torchrun --standalone --nproc-per-node n -- script arguments` and returns what the ranks printed.

    The ranks find this package even if it is not installed. No process is left behind, not even after an error, at the
    time limit, or after an interrupt. Each rank computes with one thread unless `OMP_NUM_THREADS` is set.
    After 2 seconds a line shows for how long it has run.
    While it runs, PyTorch's launcher listens on ports of all of this machine's network interfaces.

    Args:
        script: A file, or `"-m"` with the name of a module as the first argument.
        *arguments: What the script finds in `sys.argv`.
        n: The number of ranks.
        timeout: Seconds that the whole run may take.
        cwd: The folder in which it runs.

    Raises:
        FileNotFoundError: If there is no such script.
        ScriptError: If a rank fails or the time limit is exceeded.

    Example:
        >>> torchrun("no_such_script.py")
        Traceback (most recent call last):
        FileNotFoundError: there is no script no_such_script.py
    """
    if script != "-m" and not Path(cwd, script).is_file():
        raise FileNotFoundError(f"there is no script {script}")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", n]
    started = ["-m", "--"] if script == "-m" else ["--", script]  # or torchrun takes options of the script for its own
    process = subprocess.Popen(
        list(map(str, [*launcher, *started, *arguments])),
        cwd=cwd,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # so that an interrupt at the keyboard reaches only this process, which ends the others
    )
    name = " ".join(map(str, [script, *arguments]))
    try:
        output = _output(process, f"torchrun, {n} ranks", timeout)
    except subprocess.TimeoutExpired:
        raise ScriptError(f"{name} had not ended after {timeout:g} s on {n} ranks", _end(process)) from None
    except BaseException:
        _end(process)
        raise
    if process.returncode:
        raise ScriptError(f"{name} ended with status {process.returncode} on {n} ranks", output)
    return output


def _output(process: subprocess.Popen, title: str, timeout: float) -> str:
    """What a process prints until it ends. After 2 seconds a line shows for how long it has run."""
    end = time.monotonic() + timeout
    with tqdm(desc=title, bar_format="{desc}: {elapsed}", miniters=1, mininterval=1, leave=False, delay=2) as line:
        while True:
            try:
                return process.communicate(timeout=min(0.2, max(0.0, end - time.monotonic())))[0]
            except subprocess.TimeoutExpired:
                if time.monotonic() >= end:
                    raise
                line.update()


def _environment() -> dict[str, str]:
    folder = Path(__file__).resolve().parents[2]  # the one that holds the package
    given = os.environ.get("PYTHONPATH", "")
    installed = folder.name.endswith("-packages")  # on the path anyway, and must not precede the standard library
    path = os.pathsep.join(filter(None, [given, "" if installed else str(folder)]))
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}


def _end(process: subprocess.Popen) -> str:
    """Ends the launcher, which ends its ranks first (they have sessions of their own). Returns what they printed."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=_GRACE)[0]
    process.kill()
    process.stdout.close()  # without reading to its end, which a rank that is still alive would hold open
    process.wait()
    return ""


def _tail(output: str) -> str:
    """The last lines that the ranks printed, without what `torchrun` adds: its traceback and report, and its log."""
    output = re.sub(r"^Traceback .*\n(?: .*\n)+torch\.distributed\.elastic[\s\S]*", "", output, flags=re.M)
    # The path in a log line is relative to the first entry of sys.path that holds torch, which may be above a venv.
    output = re.sub(r"[EIW]\d{4} [\d:.]+ \d+ .*?torch[/\\]distributed[/\\].*\n?", "", output)
    return "\n".join(output.splitlines()[-_SHOWN:])
