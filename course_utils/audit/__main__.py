"""The auditor's command line: `python -m course_utils.audit [--json FILE] [--window N] script.py [args]`.

Exit status 0: no error was found; 1: at least one was; 2: the audit could not run; 3: the script itself failed (what
was found until then is reported, and the JSON holds the script's own exit status).
"""

import argparse
import json
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType

from course_utils.audit import audit

CLEAN, FOUND, CANNOT_RUN, SCRIPT_FAILED = 0, 1, 2, 3


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
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
    except Exception:  # not the script's
        traceback.print_exc()
        print("audit: the auditor itself has failed; the script is not to blame", file=sys.stderr)
        return CANNOT_RUN
    print(report)
    if script_exit:
        print(f"\nThe script ended with status {script_exit}; the report covers what it did until then.")
    if options.json:
        options.json.write_text(
            json.dumps({**report.as_dict(), "script_exit": script_exit}, indent=2), encoding="utf-8"
        )
    if script_exit:
        return SCRIPT_FAILED
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
    """Runs the script as `python script.py arguments` would. Returns its exit status."""
    argv, path, main = sys.argv, sys.path[:], sys.modules["__main__"]
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
    return status


def _status(error: BaseException) -> int:
    """The exit status that Python would end with, after what it would print."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return int(error.code or 0)
        print(error.code, file=sys.stderr)
        return 1
    traceback.print_exception(error.with_traceback(error.__traceback__.tb_next))  # without this file's line
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _wait_for_threads() -> None:
    """As Python does at the end of a script."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


if __name__ == "__main__":
    sys.exit(main())
