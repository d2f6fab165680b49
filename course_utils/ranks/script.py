"""Runs Python commands in processes of their own: scripts, also on several ranks by `torchrun`."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from tqdm import tqdm

Ended = tuple[int, str, bool]  # the exit status, the output, and whether it had to be stopped
# Seconds that a process gets to end when it is asked to: torchrun kills its ranks after 30.
_GRACE = 40.0


def run_python(*command: object, title: str, limit: float, cwd: str | Path = ".", one_thread: bool = False) -> Ended:
    """Runs `python command` in a process of its own.

    It finds the modules that this process finds. No process is left behind, not even after an
    interrupt. After 2 seconds a line shows for how long it has run.

    Args:
        *command: A script, or `"-m"` and a module, and their arguments.
        title: The line's text.
        limit: Seconds after which it is asked to end.
        cwd: The folder in which it runs.
        one_thread: Whether it computes with one thread, unless `OMP_NUM_THREADS` is set.

    Returns:
        Its exit status, negative if a signal ended it; all that it has printed; and whether it had
        to be stopped.

    Example:
        >>> run_python("-c", "print(6 * 7)", title="an example", limit=60)
        (0, '42\\n', False)
    """
    end, path = time.monotonic() + limit, os.pathsep.join(filter(None, sys.path))
    threads = {"OMP_NUM_THREADS": "1"} if one_thread else {}
    with TemporaryFile() as printed:
        process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=cwd,
            env=threads | os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt at the keyboard reaches this process alone
        )
        try:
            with tqdm(desc=title, bar_format="{desc}: {elapsed}", mininterval=1, leave=False, delay=2) as bar:
                while process.poll() is None and time.monotonic() < end:
                    time.sleep(0.1)
                    bar.update()
            late = process.poll() is None
        finally:
            _stop(process)
        printed.seek(0)
        return process.returncode, printed.read().decode(errors="replace"), late


def torchrun(script: str | Path, *arguments: object, limit: float, cwd: str | Path = ".", n: int = 2) -> Ended:
    """Runs `torchrun --standalone --nproc-per-node n -- script arguments`: see `run_python`.

    Each rank computes with one thread unless `OMP_NUM_THREADS` is set. While it runs, PyTorch's
    launcher listens on ports of all of this machine's network interfaces.

    Args:
        script: A file, or `"-m"` with the name of a module as the first argument.
        *arguments: The script's `sys.argv`.
        limit: Seconds that the whole run may take.
        cwd: The folder in which it runs.
        n: The number of ranks.
    """
    # Without "--", torchrun takes the script's options for its own.
    started = ["-m", "--"] if script == "-m" else ["--", script]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", n, *started, *arguments]
    return run_python(*command, title=f"torchrun, {n} ranks", limit=limit, cwd=cwd, one_thread=True)


def last_words(output: str) -> str:
    """The error that ended a script, from what it printed.

    Example:
        >>> last_words("Traceback (most recent call last):\\n  File x\\nValueError: no data\\n")
        'ValueError: no data'
    """
    output = output.partition("torch.distributed.elastic")[0]  # from where on torchrun reports
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    errors = [line for line in lines if re.search("Error|error:|Exception", line)]
    return (errors or lines or ["it printed nothing"])[-1]


def _stop(process: subprocess.Popen) -> None:
    """Asks a process to end; then kills it, and what it has started."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
    with suppress(AttributeError, OSError):  # Windows has no groups; this one is usually empty
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
