"""The command line: `gradaudit [options] script.py [args]`, or `python -m gradaudit`; `--help` lists the options.

Exit status 0: the run was judged, and no error was found; 1: at least one was found; 2: the audit could not run, or
failed before the script ended, which went on without it; 3: the script itself failed (what was found before that is
reported, and the JSON holds the script's own exit status); 4: nothing could be judged, and the report says why. A run
that was seen only in part is judged as far as it was seen.

On several ranks, use `torchrun --nproc-per-node N -m gradaudit script.py`: each rank prints a report of its
own and writes files of its own, with the rank in the name.
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
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType

from gradaudit.auditing import audit
from gradaudit.callsite import SCRIPTS
from gradaudit.explain import explain
from gradaudit.rules import RULES
from gradaudit.text import as_text, did_you_mean, has_colour, printable, width_of, write

CLEAN, FOUND, CANNOT_RUN, SCRIPT_FAILED, NOTHING_JUDGED = range(5)


def main(arguments: list[str] | None = None) -> int:
    """Runs a script under the audit and prints the report.

    Args:
        arguments: The words after `gradaudit`; `sys.argv` if None.

    Returns:
        The exit status.
    """
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    options = _parse(arguments, f"-rank{rank}" if world > 1 else "")
    script_exit, status = 0, CLEAN
    try:
        with audit(window=options.window) as report:
            script = ModuleType("__main__")  # its objects live until the audit has ended
            script_exit = _run(script, options)
            report.history.failed = script_exit != 0
        clean = CLEAN if report.judged else NOTHING_JUDGED
        status = FOUND if report.errors else CANNOT_RUN if report.failure else clean
        before = f"Rank {rank} of {world}. " if world > 1 else ""
        if script_exit:
            before += f"The script ended with status {script_exit}; the report covers what it did before that. "
        name = printable(options.script if options.m else Path(options.script).name)
        text = as_text(report, width_of(sys.stdout), has_colour(sys.stdout), before)
        write(f"\n--- audit of {name} ---\n{text}\n", sys.stdout)  # a progress bar may have left a line open
        if options.json:
            made = json.dumps({**report.as_dict(), "script_exit": script_exit}, indent=2)
            options.json.write_text(made, encoding="utf-8")
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


def _parse(arguments: list[str] | None, of_rank: str) -> argparse.Namespace:
    """The options, if the audit can run; else ends with a line that says what to do."""
    parser = argparse.ArgumentParser(
        prog="gradaudit",
        usage="%(prog)s [options] script.py [its arguments]\n       %(prog)s [options] -m module [its arguments]",
        description="Runs a training script, unchanged, and names its zeroing and accumulation bugs.",
        epilog="exit status: 0 judged, no error found; 1 at least one error; 2 the audit could not run, or failed "
        "while the script went on; 3 the script failed; 4 nothing could be judged",
    )
    add = parser.add_argument
    add("-m", action="store_true", help="run a module by its name, as python -m does")
    add("--window", type=int, metavar="N", help="the intended micro-batches per update (else inferred)")
    add("--json", type=Path, metavar="FILE", help="also write the findings to FILE")
    add("--explain", action=_Explain, nargs="?", metavar="RULE", help="explain a rule, or list all, and run nothing")
    add("script", help="the script or module to run, followed by its own arguments")
    add("args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS).required = False
    options = parser.parse_args(arguments)
    problem = _why_no_module(options.script) if options.m else _why_no_script(options.script)
    if options.window is not None and options.window < 1:
        problem = f"--window must be 1 or more, got {options.window}"
    if options.json is not None:  # what can't be written is said before the script runs for hours
        file = options.json.parent.absolute() / f"{options.json.stem}{of_rank}{options.json.suffix}"
        if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
            problem = f"cannot write {file}; give --json a file in a folder that you may write to"
        options.json = file
    if problem:
        _refuse(parser, problem)
    return options


def _refuse(parser: argparse.ArgumentParser, problem: str) -> None:
    parser.exit(CANNOT_RUN, f"gradaudit: {printable(problem)}\n")


def _why_no_script(name: str) -> str:
    """Why a file can't be run, and what to do instead; "" if it can."""
    path = Path(name)
    if path.is_file():
        return ""
    folder = path if path.is_dir() else path.parent
    scripts = sorted(str(each) for each in folder.glob("*.py"))
    if path.is_dir():
        scripts.sort(key=lambda each: "train" not in Path(each).name.lower())
        return ", such as ".join([f"{name} is a folder; name the script in it", *scripts[:1]])
    return f"there is no script {name}; {did_you_mean(str(path), scripts, f'paths begin at {Path.cwd()}')}"


def _why_no_module(name: str) -> str:
    """Why a module can't be run, as far as that is known before its package is imported, which may run code."""
    first, *rest = name.split(".")
    if rest[-1:] == ["py"] and Path(name).is_file():
        return f"there is no module {name}; to run the file, leave out -m"
    there = first.isidentifier() and find_spec(first) is not None
    return "" if there else f"there is no module {name}: nothing called {first} is here or installed"


class _Explain(argparse.Action):
    """Like `--help`: prints and ends."""

    def __call__(self, parser: argparse.ArgumentParser, namespace, name: str | None, option=None) -> None:
        if name is not None and name not in RULES:
            _refuse(parser, f"there is no rule {name}; {did_you_mean(name, RULES, 'gradaudit --explain lists all')}")
        write(f"{explain(name, width_of(sys.stdout), has_colour(sys.stdout))}\n", sys.stdout)
        parser.exit()


def _run(module: ModuleType, options: argparse.Namespace) -> int:
    """Runs the script as `python script.py arguments` or `python -m module` would, and returns its exit status."""
    argv, path, main = sys.argv, sys.path[:], sys.modules["__main__"]
    if threading.current_thread() is threading.main_thread():  # a request to end, as of torchrun, is an exit to report
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.argv = [options.script, *options.args]
    sys.modules["__main__"] = module
    code_of = _code_of_module if options.m else _code_of_script
    try:
        code = code_of(module, options.script)
        SCRIPTS.add(code.co_filename)
        exec(code, vars(module))
        status = 0
    except BaseException as error:
        status = _status(error)
    finally:
        _wait_for_threads()
        sys.argv, sys.path, sys.modules["__main__"] = argv, path, main
    return status


def _code_of_script(module: ModuleType, script: str) -> CodeType:
    sys.path[0] = str(Path(script).resolve().parent)
    module.__file__ = os.path.abspath(script)
    return compile(Path(script).read_bytes(), module.__file__, "exec", dont_inherit=True)


def _code_of_module(module: ModuleType, name: str) -> CodeType:
    """Also imports the packages that the module lies in, so that its relative imports work."""
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{name}.__main__")
    code = spec.loader.get_code(spec.name) if spec is not None and spec.loader is not None else None
    if code is None:
        raise ImportError(f"there is no module {name} that can be run", name=name)
    sys.argv[0] = spec.origin
    module.__spec__, module.__loader__, module.__package__ = spec, spec.loader, spec.parent
    module.__file__, module.__cached__ = spec.origin, spec.cached
    return code


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
    while entry is not None and entry.tb_frame.f_code.co_filename == __file__:  # as if Python ran the script itself
        entry = entry.tb_next
    traceback.print_exception(error.with_traceback(entry))
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _wait_for_threads() -> None:
    """Waits for the script's threads, as Python does at the end of a script."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def command() -> int:
    """What `gradaudit` runs. As with `python -m gradaudit`, modules are looked for in the working directory first."""
    sys.path[0] = os.getcwd()
    return main()


if __name__ == "__main__":
    sys.exit(main())
