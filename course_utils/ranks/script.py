"""Runs a script on several ranks of this machine as on a cluster: by `torchrun`."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

SHOWN = 25  # lines of output in an error's text
PATIENCE = 40.0  # seconds that torchrun gets to end its ranks: it asks them, and kills them after 30


class ScriptError(RuntimeError):
    """A script failed on several ranks, or took too long: `output` is all that its ranks and `torchrun` printed."""

    def __init__(self, message: str, output: str):
        super().__init__(f"{message}; the end of its output:\n{_tail(output)}")
        self.output = output


def torchrun(script: str | Path, *arguments: object, n: int = 2, timeout: float = 30.0, cwd: str | Path = ".") -> str:
    """Runs `torchrun --standalone --nproc-per-node n script arguments` and waits for its end.

    The ranks find this package also where it is not installed. No process is left, after an error, the end of the time
    or an interrupt neither. Each rank computes with one thread, unless `OMP_NUM_THREADS` says otherwise.

    **Arguments:** `script`: a file, or `"-m"` with the name of a module as the first argument; `n`: the number of
    ranks; `timeout`: seconds that the whole may take; `cwd`: the folder in which it runs.

    **Returns:** what the ranks have printed.

    **Raises:** `FileNotFoundError` if there is no such script; `ScriptError` if a rank fails or the time is over.

    >>> torchrun("no_such_script.py")
    Traceback (most recent call last):
    FileNotFoundError: there is no script no_such_script.py
    """
    if script != "-m" and not Path(cwd, script).is_file():
        raise FileNotFoundError(f"there is no script {script}")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", n]
    process = subprocess.Popen(
        list(map(str, [*launcher, script, *arguments])),
        cwd=cwd,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # an interrupt at the keyboard is for this process, which then ends the others
    )
    name = " ".join(map(str, [script, *arguments]))
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise ScriptError(f"{name} had not ended after {timeout:g} s on {n} ranks", _end(process)) from None
    except BaseException:
        _end(process)
        raise
    if process.returncode:
        raise ScriptError(f"{name} ended with status {process.returncode} on {n} ranks", output)
    return output


def _environment() -> dict[str, str]:
    folder = Path(__file__).resolve().parents[2]  # the one that holds the package
    given = os.environ.get("PYTHONPATH", "")
    installed = folder.name.endswith("-packages")  # found anyway, and must not come before the standard library
    path = os.pathsep.join(filter(None, [given, "" if installed else str(folder)]))
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}


def _end(process: subprocess.Popen) -> str:
    """Ends the launcher, which ends its ranks first; they have sessions of their own. Returns what they printed."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=PATIENCE)[0]
    process.kill()
    process.stdout.close()  # not read to its end, for which a rank that holds it would have to end
    process.wait()
    return ""


def _tail(output: str) -> str:
    """The last lines of what the ranks printed, without what `torchrun` adds: log, traceback, report."""
    output = re.sub(r"^Traceback .*\n(?: .*\n)+torch\.distributed\.elastic[\s\S]*", "", output, flags=re.M)
    log = re.compile(r"[EIW]\d{4} .* torch/distributed/")
    return "\n".join([line for line in output.splitlines() if not log.match(line)][-SHOWN:])
