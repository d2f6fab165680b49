"""Runs Python commands in processes of their own: scripts, also on two ranks by `torchrun`."""

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

# Seconds that a process gets to end when it is asked to: torchrun kills its ranks after 30.
_GRACE = 40.0


# For `run_python`, before a command for two ranks. PyTorch's launcher listens on ports of all network
# interfaces while it runs, and may take options of a script for its own unless "--" stands before.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run_python(*command: object, title: str, limit: float, cwd: str | Path = ".") -> tuple[int, str, bool]:
    """Runs `python command` in a process of its own, with one thread unless `OMP_NUM_THREADS` is set.

    It finds the modules that this process finds. No process is left behind, not even after an
    interrupt. After 2 seconds a line shows for how long it has run.

    Args:
        *command: A script, or `"-m"` and a module, and their arguments.
        title: The line's text.
        limit: Seconds after which it is asked to end.
        cwd: The folder in which it runs.

    Returns:
        Its exit status, negative if a signal ended it; all that it has printed; and whether it had
        to be stopped.

    Example:
        >>> run_python("-c", "print(6 * 7)", title="an example", limit=60)
        (0, '42\\n', False)
    """
    path = os.pathsep.join(filter(None, sys.path))
    with TemporaryFile() as printed:
        process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=cwd,
            env={"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt at the keyboard reaches this process alone
        )
        end = time.monotonic() + limit
        try:
            with tqdm(desc=title, bar_format="{desc}: {elapsed}", mininterval=1, delay=2) as bar:
                while process.poll() is None and time.monotonic() < end:
                    time.sleep(0.1)
                    bar.update()
            late = process.poll() is None
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
            with suppress(AttributeError, OSError):  # Windows has no groups; this one is usually empty
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
        printed.seek(0)
        return process.returncode, printed.read().decode(errors="replace"), late


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
