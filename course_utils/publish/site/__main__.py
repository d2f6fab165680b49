"""The command line: `python -m course_utils.publish.site [--out build/site] [--printed build]`.

Exit status 0: the site was written; 2: nothing was, and the message says why.
"""

import argparse
import sys
from pathlib import Path

from course_utils.publish import PublishError
from course_utils.publish.site import build


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.publish.site", description="Writes the course as a website, to read from disk too."
    )
    parser.add_argument("--out", type=Path, default=Path("build/site"), help="the folder (default: build/site)")
    parser.add_argument("--printed", type=Path, metavar="FOLDER", help="offer the handouts in this folder for download")
    options = parser.parse_args(arguments)
    try:
        pages = build(options.out, options.printed)
    except PublishError as problem:
        print(f"site: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("site: interrupted, nothing was written", file=sys.stderr)
        return 2
    print(f"{pages} pages: open {options.out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
