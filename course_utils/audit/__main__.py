"""The auditor's command line: `python -m course_utils.audit [--json FILE] [--window N] script.py [args]`.

Exit status 0: no error was found; 1: at least one was found; 2: the audit could not run; 3: the script itself failed
(what was found before that is reported, and the JSON holds the script's own exit status).

On several ranks, use `torchrun --nproc-per-node N -m course_utils.audit script.py`: each rank prints a report of its
own and writes a JSON file of its own, with the rank in the name.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from course_utils.audit import audit

CLEAN, FOUND, CANNOT_RUN, SCRIPT_FAILED = 0, 1, 2, 3


def main(arguments: list[str] | None = None) -> int:
    """Runs a script under the audit and prints the report.

    Args:
        arguments: The words after `python -m course_utils.audit`; `sys.argv` if None.

    Returns:
        The exit status.
    """
    options = _parse(arguments)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if options.json and world > 1:
        options.json = options.json.with_stem(f"{options.json.stem}-rank{rank}")
    if options.json:
        try:  # before the script runs for hours
            options.json.touch()
        except OSError as error:
            print(f"audit: cannot write {options.json}: {error}", file=sys.stderr)
            return CANNOT_RUN
    try:
        with audit(window=options.window) as report:
            script = ModuleType("__main__")  # its objects live until the audit has ended
            script_exit = _run(script, options.script, options.args)
            report.history.failed = script_exit != 0
    except Exception:  # not one of the script's, which _run handles
        traceback.print_exc()
        print("audit: the auditor itself has failed; the script is not to blame", file=sys.stderr)
        return CANNOT_RUN
    text = f"Rank {rank} of {world}. {report}\n" if world > 1 else f"{report}\n"
    if script_exit:
        text += f"\nThe script ended with status {script_exit}; the report covers what it did before that.\n"
    print(text, end="", flush=True)  # in one write: the ranks print at the same time
    if options.json:
        options.json.write_text(
            json.dumps({**report.as_dict(), "script_exit": script_exit}, indent=2), encoding="utf-8"
        )
    if script_exit:
        return SCRIPT_FAILED
    if world > 1:
        _wait_for_ranks(world)
    return FOUND if report.errors else CLEAN


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.audit",
        description="Runs a training script, unchanged, and names its zeroing and accumulation bugs.",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the findings to FILE")
    parser.add_argument("--window", type=int, metavar="N", help="the intended micro-batches per update (else inferred)")
    parser.add_argument("script", type=Path, help="the script to run, followed by its own arguments")
    parser.add_argument("args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.window is not None and options.window < 1:
        parser.error(f"--window must be 1 or more, got {options.window}")
    if not options.script.is_file():
        parser.error(f"there is no script {options.script}")
    return options


def _run(module: ModuleType, script: Path, arguments: list[str]) -> int:
    """Runs the script as `python script.py arguments` would, and returns its exit status."""
    argv, path, main = sys.argv, sys.path[:], sys.modules["__main__"]
    terminate = _on_terminate()
    sys.argv, sys.path[0] = [str(script), *arguments], str(script.resolve().parent)
    sys.modules["__main__"] = module
    module.__file__ = str(script)
    try:
        exec(compile(script.read_bytes(), str(script), "exec", dont_inherit=True), vars(module))
        status = 0
    except BaseException as error:
        status = _status(error)
    finally:
        _wait_for_threads()
        sys.argv, sys.path, sys.modules["__main__"] = argv, path, main
        if terminate is not None:
            signal.signal(signal.SIGTERM, terminate)
    return status


def _on_terminate() -> Any:
    """Turns a request to end, by a cluster or by torchrun, into an exit that is reported. Returns the old handler."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _wait_for_ranks(world: int, limit: float = 30.0) -> None:
    """Waits until every rank has written its report: torchrun ends all ranks when one exits with a nonzero status."""
    from torch.distributed import TCPStore  # not in every build of torch

    try:
        store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=timedelta(seconds=limit))
        end = time.monotonic() + limit
        store.add("course_utils.audit", 1)
        while store.add("course_utils.audit", 0) < world and time.monotonic() < end:
            time.sleep(0.05)
    except (KeyError, ValueError, RuntimeError):
        pass  # not started by torchrun: nothing ends the others


def _status(error: BaseException) -> int:
    """Prints what Python would print, and returns the exit status that it would end with."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return int(error.code or 0)
        print(error.code, file=sys.stderr)
        return 1
    traceback.print_exception(error.with_traceback(error.__traceback__.tb_next))  # without this file's line
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _wait_for_threads() -> None:
    """Waits for the script's threads, as Python does at the end of a script."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


if __name__ == "__main__":
    sys.exit(main())
