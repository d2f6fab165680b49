"""The tables of contents, generated from the notebooks' title cells: `python -m course_utils.publish.contents`.

README.md and the notebook 00_start each hold one between the comments `<!-- contents -->` and `<!-- /contents -->`.
With `--check` nothing is written, and the exit status is 1 if a table is out of date.
"""

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import nbformat

from course_utils.publish import PublishError
from course_utils.publish.notebook import Notebook, folder, read_notebooks

BEGIN, END = "<!-- contents -->", "<!-- /contents -->"


def outdated() -> dict[Path, str]:
    """The files whose tables are out of date, each with the content that it should have.

    Raises:
        PublishError: If a notebook cannot be read, or one of the two tables has lost its place.
    """
    notebooks = read_notebooks()
    readme = folder().parent / "README.md"
    table = _table(notebooks.values(), "[`{0}`](notebooks/{0}.ipynb)")
    now = {readme: _with_table(readme.read_text(encoding="utf-8"), table, readme)}
    start = notebooks.pop("00_start")
    cell = next((cell for cell in start.cells if BEGIN in cell.source), start.cells[0])
    cell.source = _with_table(cell.source, _table(notebooks.values(), "[{0}]({0}.ipynb)"), start.path)
    now[start.path] = nbformat.writes(start.node) + "\n"
    return {path: text for path, text in now.items() if path.read_text(encoding="utf-8") != text}


def _table(notebooks: Iterable[Notebook], link: str) -> str:
    rows = [f"| {link.format(book.name)} | {book.question} | {book.minutes} |" for book in notebooks]
    return "\n".join(["| notebook | its question | minutes |", "| --- | --- | --- |", *rows])


def _with_table(text: str, table: str, path: Path) -> str:
    new, found = re.subn(rf"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{table}\n\n{END}", text, flags=re.S)
    if found != 1:
        raise PublishError(f"{path} must hold one pair of {BEGIN} and {END}, with the table of contents between them")
    return new


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.publish.contents",
        description="Writes the table of README.md and the map of 00_start from the notebooks' title cells.",
    )
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    options = parser.parse_args(arguments)
    try:
        changed = outdated()
        for path, text in changed.items():
            print(f"{path.name} {'is out of date' if options.check else 'updated'}")
            if not options.check:
                path.write_text(text, encoding="utf-8")
    except (OSError, PublishError) as problem:
        print(f"contents: {problem}", file=sys.stderr)
        return 2
    return int(options.check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
