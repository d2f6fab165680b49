"""The command line: `gradaudit [options] script.py [args]`, or `python -m gradaudit`; `--help` lists the options.

Exit status 0: the run was judged, and no error was found; 1: at least one was found; 2: the audit could not run, or
failed before the script ended, which went on without it; 3: the script itself failed (what was found before that is
reported, and the JSON holds the script's own exit status); 4: nothing could be judged, and the report says why. A run
that was seen only in part is judged as far as it was seen.

On several ranks, use `torchrun --nproc-per-node N -m gradaudit script.py`: each rank prints a report of its
own and writes files of its own, with the rank in the name.
"""

import argparse
import os
import signal
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from gradaudit.explain import docstrings, explain
from gradaudit.text import did_you_mean, has_colour, printable, width_of, write

_FORMATS = "text", "concise", "github", "sarif", "json"
_LEVELS = "error", "undecided", "advice"  # from which on a finding is an error to the shell
_IN_FILE = {"ignore": list, "fail-on": str, "window": int}  # keys of [tool.gradaudit] in pyproject.toml


def main(arguments: list[str] | None = None) -> int:
    """Runs a script under the audit and prints the report.

    Args:
        arguments: The words after `gradaudit`; `sys.argv` if None.

    Returns:
        The exit status.
    """
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    options = _parse(arguments, f"-rank{rank}" if world > 1 else "")
    options.name = printable(options.script if options.m else Path(options.script).name)
    write(f"gradaudit: watching {options.name}{f', rank {rank} of {world}' * (world > 1)}\n", sys.stderr)
    from gradaudit.running import run_audited  # imports torch, which takes seconds

    before = signal.getsignal(signal.SIGTERM)
    try:
        return run_audited(options, rank, world)
    finally:
        with suppress(ValueError):  # in a thread, which can't set one, and hasn't
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


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
    add("--window", type=int, metavar="N", help="micro-batches per update, as intended (else inferred)")
    add("--max-updates", type=int, metavar="K", help="end the script after its K-th update")
    add("--ignore", action="append", metavar="RULE,...", help="leave out what these rules find")
    add("--fail-on", metavar="LEVEL", help="exit with 1 from error (default), undecided or advice on")
    add("--output-format", metavar="FORMAT", default="text", choices=_FORMATS, help=", ".join(_FORMATS))
    add("--output", type=Path, metavar="FILE", help="write this format to FILE, and print text")
    add("--explain", action=_Explain, nargs="?", metavar="RULE", help="explain a rule, or list all, and run nothing")
    add("script", help=argparse.SUPPRESS)
    add("args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS).required = False
    options = parser.parse_args(arguments)
    if problem := next(filter(None, _problems(options, of_rank)), ""):
        _refuse(parser, problem)
    return options


def _refuse(parser: argparse.ArgumentParser, problem: str) -> None:
    parser.exit(2, f"gradaudit: {printable(problem)}\n")


def _problems(options: argparse.Namespace, of_rank: str) -> Iterator[str]:
    """Completes the options, and yields why the audit can't run, "" where it can: before the script runs for hours."""
    yield _why_no_module(options.script) if options.m else _why_no_script(options.script)
    yield _fill_in(options, Path.cwd() if options.m else Path(options.script).resolve().parent)
    for name in ("window", "max_updates"):
        value = getattr(options, name)
        yield f"--{name.replace('_', '-')} must be 1 or more, got {value}" * (value is not None and value < 1)
    options.ignore = [name.strip() for part in options.ignore or () for name in str(part).split(",")]
    yield from map(_why_no_rule, options.ignore)
    level = options.fail_on or "error"
    yield f"--fail-on must be {', '.join(_LEVELS)}, got {level}" * (level not in _LEVELS)
    options.fail_on = _LEVELS[: _LEVELS.index(level) + 1]
    if file := options.output:
        options.output = file = file.parent.absolute() / f"{file.stem}{of_rank}{file.suffix}"
        if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
            yield f"cannot write {file}; give --output a file in a folder that you may write to"


def _fill_in(options: argparse.Namespace, folder: Path) -> str:
    """Adds what the nearest pyproject.toml says and the command line doesn't; returns what is wrong with it."""
    files = (each / "pyproject.toml" for each in (folder, *folder.parents))
    file = next(filter(Path.is_file, files), None)
    try:
        table = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("gradaudit", {}) if file else {}
    except ValueError as error:
        return f"{file}: {error}"
    for key, value in table.items():
        if type(value) is not _IN_FILE.get(key):
            takes = ", ".join(f"{each} ({kind.__name__})" for each, kind in _IN_FILE.items())
            return f"[tool.gradaudit] in {file} takes {takes}, got {key} = {value!r}"
        name = key.replace("-", "_")
        setattr(options, name, value if getattr(options, name) is None else getattr(options, name))
    return ""


def _why_no_rule(name: str) -> str:
    known = docstrings()
    return f"there is no rule {name}; {did_you_mean(name, known, 'gradaudit --explain lists all')}" * (
        name not in known
    )


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
        if name is not None and (problem := _why_no_rule(name)):
            _refuse(parser, problem)
        write(f"{explain(name, width_of(sys.stdout), has_colour(sys.stdout))}\n", sys.stdout)
        parser.exit()


def command() -> int:
    """What `gradaudit` runs. As with `python -m gradaudit`, modules are looked for in the working directory first."""
    sys.path[0] = os.getcwd()
    return main()


if __name__ == "__main__":
    sys.exit(main())
