"""The project's commands: `python -m course_utils.project start [FOLDER]` and `... accept train.py`.

Exit status of `accept`: 0: the script is accepted; 1: it fails at least one check; 2: it can't be judged.
"""

import argparse
import shutil
import sys
from pathlib import Path

ACCEPTED, FAILED, CANNOT_JUDGE = range(3)
WORDS = {True: "ok", False: "FAILS", None: "-"}


def main(arguments: list[str] | None = None) -> int:
    """Runs one of the commands.

    Args:
        arguments: The words after `python -m course_utils.project`; `sys.argv` if None.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m course_utils.project", description="The project of notebook 12.")
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="copy the training script")
    start.add_argument("folder", nargs="?", default=".", type=Path, metavar="FOLDER")
    start.set_defaults(run=_start)
    accept = commands.add_parser(
        "accept", help="judge a training script",
        epilog="exit status: 0 accepted; 1 at least one check fails; 2 the script can't be judged",
    )  # fmt: skip
    accept.add_argument("script", type=Path)
    accept.add_argument("--limit", type=float, default=120.0, metavar="S", help="seconds for each of its processes")
    accept.set_defaults(run=_accept)
    options = parser.parse_args(arguments)
    from course_utils.project.accept import CannotJudge

    try:
        return options.run(options)
    except (CannotJudge, OSError) as error:
        print(f"project: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("project: interrupted, nothing is judged", file=sys.stderr)
    return CANNOT_JUDGE


def _start(options: argparse.Namespace) -> int:
    copy = options.folder / "train.py"
    if copy.exists():
        raise OSError(f"cannot write {copy}: it exists already, and may hold your work")
    options.folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).parent / "train.py", copy)
    print(f"{copy} is yours now. Judge it with: python -m course_utils.project accept {copy}")
    return ACCEPTED


def _accept(options: argparse.Namespace) -> int:
    from course_utils.project.accept import accept

    results = accept(options.script, options.limit)
    for name, passed, says in results:
        print(f"{WORDS[passed]:<6}{name:<9} {says}")
    failed = [result.name for result in results if result.passed is False]
    print(f"not accepted: {', '.join(failed)}" if failed else "accepted")
    return FAILED if failed else ACCEPTED


if __name__ == "__main__":
    sys.exit(main())
