"""Runs a script as Python would, under the audit, and writes the report."""

import argparse
import json
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

from gradaudit.auditing import audit
from gradaudit.callsite import SCRIPTS
from gradaudit.early import EarlyAuditor
from gradaudit.formats import as_text, formatted
from gradaudit.report import Report
from gradaudit.text import has_colour, width_of, write

CLEAN, FOUND, CANNOT_RUN, SCRIPT_FAILED, NOTHING_JUDGED = range(5)  # exit statuses


def run_audited(options: argparse.Namespace, rank: int, world: int) -> int:
    """Runs the script, writes the report, and returns the exit status.

    Args:
        options: Those of the command line.
        rank: Of this process.
        world: How many ranks there are.
    """
    script_exit, status = 0, CLEAN
    before = f"Rank {rank} of {world}. " if world > 1 else ""
    try:
        auditor = EarlyAuditor(options.max_updates, options.ignore)
        with audit(options.window, ignore=options.ignore, auditor=auditor) as report:
            objects: dict = {}  # of the script, which live until the audit has ended
            script_exit = _run(objects, options)
            report.history.failed = script_exit != 0 or auditor.has_ended  # then an open window is no error
        clean = CLEAN if report.judged else NOTHING_JUDGED
        found = any(finding.level in options.fail_on for finding in report.findings)
        status = FOUND if found else CANNOT_RUN if report.failure else clean
        if auditor.has_ended:
            before += f"The script was ended after update {options.max_updates}, as --max-updates says. "
        if script_exit:
            before += f"The script ended with status {script_exit}; the report covers what it did before that. "
        _write(report, options, before, script_exit)
        if status == FOUND:
            _tell_torchrun(f"{report.conclusion()}; the report is above")
    except Exception:  # not one of the script's, which _run handles
        traceback.print_exc()
        status = CANNOT_RUN
    if script_exit:
        return SCRIPT_FAILED
    if status == CANNOT_RUN:
        print("gradaudit: the auditor itself has failed; the script is not to blame", file=sys.stderr)
    if world > 1:
        _wait_for_ranks(world)
    return status


def _write(report: Report, options: argparse.Namespace, before: str, script_exit: int) -> None:
    """Prints the report, below a line that a progress bar may have left open, and writes the files."""
    text = f"--- audit of {options.name} ---\n"
    text += as_text(report, width_of(sys.stdout), has_colour(sys.stdout), before)
    if options.output_format != "text" and not options.output:
        text = formatted(report, options.output_format, before, script_exit)
    write(f"\n{text}\n", sys.stdout)
    if options.output:
        text = formatted(report, options.output_format, before, script_exit)
        options.output.write_text(f"{text}\n", encoding="utf-8")


def _tell_torchrun(what: str) -> None:
    """What torchrun shows as the cause of a nonzero status: at the very end, below the reports and its traceback."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        Path(file).write_text(json.dumps({"message": f"gradaudit: {what}", "timestamp": int(time.time())}))


def _run(objects: dict, options: argparse.Namespace) -> int:
    """Runs the script as `python script.py arguments` or `python -m module` would, and returns its exit status."""
    argv, path = sys.argv, sys.path[:]
    if threading.current_thread() is threading.main_thread():  # a request to end, as of torchrun, is an exit to report
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.argv = [options.script, *options.args]
    try:
        if options.m:
            SCRIPTS.add(_file_of_module(options.script))
            objects |= runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(options.script).resolve().parent)
            objects |= runpy.run_path(os.path.abspath(options.script), run_name="__main__")
        status = 0
    except BaseException as error:
        status = _status(error)
    finally:
        _wait_for_threads()
        sys.argv, sys.path = argv, path
    return status


def _file_of_module(name: str) -> str:
    """Where a module lies, whose code is the user's, also if it is installed. Imports the packages that it lies in."""
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{name}.__main__")
    return spec.origin if spec is not None else ""


def _wait_for_ranks(world: int, limit: float = 30.0) -> None:
    """Waits until every rank has written its report: torchrun ends all ranks when one exits with a nonzero status."""
    from torch.distributed import TCPStore  # not in every build of torch

    try:
        store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=timedelta(seconds=limit))
        end = time.monotonic() + limit
        store.add("gradaudit", 1)
        while store.add("gradaudit", 0) < world and time.monotonic() < end:
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
    entry = error.__traceback__
    own = __file__, "<frozen runpy>"
    while entry is not None and entry.tb_frame.f_code.co_filename in own:  # as if Python ran the script itself
        entry = entry.tb_next
    traceback.print_exception(error.with_traceback(entry))
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _wait_for_threads() -> None:
    """Waits for the script's threads, as Python does at the end of a script."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
