"""Runs Python commands in processes that start at once: where the system can fork, from one that has imported torch."""

import multiprocessing
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

_IMPORTED = ["torch._dynamo", "course_utils.memory", "gradaudit"]  # what the commands need


class Endless(Exception):
    """A command had not ended in time, and was ended."""


def run(command: Sequence[object], folder: Path, limit: float) -> tuple[int, str]:
    """The exit status of `python command`, negative if a signal ended it, and all that it printed.

    No process is left behind, not even one that the command has started.

    Args:
        command: A script or `"-m"` and a module, and their arguments.
        folder: Where it runs.
        limit: Seconds that it may take.

    Raises:
        Endless: If it takes longer.

    Example:
        >>> run(["-m", "platform", "--help"], Path("."), 60)[0]
        0
    """
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(_IMPORTED)
        _start_server()
    with TemporaryDirectory() as scratch:
        printed = Path(scratch) / "printed.txt"
        process = context.Process(target=_run, args=(list(map(str, command)), str(folder), str(printed)))
        process.start()
        try:
            process.join(limit)
            if process.is_alive():
                raise Endless
        finally:
            with suppress(AttributeError, OSError):  # Windows has no groups; usually nothing is left of this one
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
        output = printed.read_text(encoding="utf-8", errors="replace") if printed.exists() else ""
    return process.exitcode, output


def _start_server() -> None:
    """Starts the process to fork from, which an interrupt at the keyboard does not reach, not even while it imports."""
    from multiprocessing.forkserver import ensure_running

    if threading.current_thread() is not threading.main_thread():
        return ensure_running()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


def _run(command: list[str], folder: str, printed: str) -> None:
    """In the process: becomes what `python command` would be."""
    import torch

    if hasattr(os, "setsid"):
        os.setsid()  # an interrupt at the keyboard reaches the caller alone, which ends this group
    try:
        file = os.open(printed, os.O_WRONLY | os.O_CREAT)
    except FileNotFoundError:
        os._exit(1)  # the caller was interrupted before this began
    os.dup2(file, 1)
    os.dup2(file, 2)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
    os.chdir(folder)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # the model is small: a second thread would mostly wait
    status = 0
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = command, str(Path(command[0]).resolve().parent)
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if status and not isinstance(ended.code, int):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
