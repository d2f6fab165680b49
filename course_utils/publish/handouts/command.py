"""The command line: `python -m course_utils.handouts`.

Exit status 0: all files were written; 2: none was, and the message says why.
"""

import argparse
import sys
from pathlib import Path

from course_utils.publish import PublishError
from course_utils.publish.handouts import EDITIONS, build
from course_utils.publish.handouts.press import PAPERS

WRITTEN, NOTHING_WRITTEN = 0, 2


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.handouts", description="Prints the notebooks as handouts for a workshop, as PDF."
    )
    parser.add_argument(
        "--edition", nargs="+", choices=(*EDITIONS, "all"), default=["all"], help="one or more (default: all)"
    )
    parser.add_argument("--notebooks", nargs="+", default=[], metavar="NAME", help="only these, such as 02_zeroing")
    parser.add_argument("--paper", type=str.lower, choices=PAPERS, default="a4", help="its size (default: a4)")
    parser.add_argument("--out", type=Path, default=Path("build"), help="the folder to write in (default: build)")
    options = parser.parse_args(arguments)
    wanted = EDITIONS if "all" in options.edition else options.edition
    try:
        written = build(options.out, wanted, options.notebooks, options.paper)
    except PublishError as problem:
        print(f"handouts: {problem}", file=sys.stderr)
        return NOTHING_WRITTEN
    except KeyboardInterrupt:
        print("handouts: interrupted, nothing was written", file=sys.stderr)
        return NOTHING_WRITTEN
    print(f"{len(written)} files in {options.out}")
    return WRITTEN
