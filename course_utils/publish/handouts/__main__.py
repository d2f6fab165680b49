"""The command line: `python -m course_utils.handouts`.

Exit status 0: all files were written; 2: none was, and the message says why.
"""

import argparse
import sys
from pathlib import Path

from course_utils.publish.handouts import EDITIONS, FORMATS, HandoutError, build
from course_utils.publish.handouts.press import PAPERS

WRITTEN, NOTHING_WRITTEN = 0, 2


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    try:
        written = build(
            options.out,
            EDITIONS if options.edition == "all" else (options.edition,),
            FORMATS if options.format == "all" else (options.format,),
            tuple(dict.fromkeys(options.notebooks)),
            options.paper,
        )
    except HandoutError as problem:
        print(f"handouts: {problem}", file=sys.stderr)
        return NOTHING_WRITTEN
    except KeyboardInterrupt:
        print("handouts: interrupted, nothing was written", file=sys.stderr)
        return NOTHING_WRITTEN
    print(f"{len(written)} files in {options.out}")
    return WRITTEN


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.handouts", description="Prints the notebooks as handouts for a workshop."
    )
    parser.add_argument("--edition", choices=(*EDITIONS, "all"), default="all", help="what to build (default: all)")
    parser.add_argument("--format", choices=(*FORMATS, "all"), default="all", help="in which form (default: all)")
    parser.add_argument("--notebooks", nargs="+", default=[], metavar="NAME", help="only these, such as 02_zeroing")
    parser.add_argument("--paper", choices=PAPERS, default="a4", help="paper of the PDFs (default: a4)")
    parser.add_argument("--out", type=Path, default=Path("build"), help="the folder to write in (default: build)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
