"""The project's commands: `start [FOLDER]` copies the script, `accept train.py` judges one.

Exit status of `accept`: 0: the script is accepted; 1: it fails at least one check; 2: it can't be
judged.
"""

import argparse
import sys
from pathlib import Path

from course_utils.project.accept import CannotJudge, accept

ACCEPTED, FAILED, CANNOT_JUDGE = range(3)


def main(arguments: list[str] | None = None) -> int:
    """Runs one of the commands.

    Args:
        arguments: The words after `python -m course_utils.project`; `sys.argv` if None.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser("python -m course_utils.project", description=__doc__)
    parser.add_argument("command", choices=["start", "accept"], help="copy the training script, or judge one")
    parser.add_argument("path", nargs="?", default=".", type=Path, help="a folder for train.py, or the script")
    options = parser.parse_args(arguments)
    failed = []
    try:
        if options.command == "start":
            return _start(options.path)
        for name, passed, says in accept(options.path):
            print(f"{'ok' if passed else 'FAILS':<6}{name:<9} {says}")
            failed += [name] * (not passed)
    except (CannotJudge, OSError, KeyboardInterrupt) as error:
        print(f"project: {str(error) or 'interrupted, nothing is judged'}", file=sys.stderr)
        return CANNOT_JUDGE
    print(f"not accepted: {', '.join(failed)}" if failed else "accepted")
    return FAILED if failed else ACCEPTED


def _start(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.py").open("xb") as copy:  # never overwrites your work
        copy.write(Path(__file__).with_name("train.py").read_bytes())
    print(f"{copy.name} is yours now. Judge it with: python -m course_utils.project accept {copy.name}")
    return ACCEPTED


if __name__ == "__main__":
    sys.exit(main())
