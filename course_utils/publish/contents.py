"""The tables of contents and the paths through the course: `python -m course_utils.publish.contents`.

They are generated from the notebooks' title cells, for README.md, between the comments `<!-- contents -->` and
`<!-- /contents -->`, and for the site. With `--check` nothing is written, and the exit status is 1 if anything is out
of date.
"""

import argparse
import re
import sys
from collections.abc import Callable
from math import ceil

from course_utils.publish import PublishError
from course_utils.publish.notebook import PATHS, PROJECT, Notebook, folder, read_notebooks
from course_utils.publish.reading import minutes_on

BEGIN, END = "<!-- contents -->", "<!-- /contents -->"
Link = Callable[[str, Notebook], str]  # a text that leads to a notebook


def readme() -> tuple[str, str]:
    """README.md as it is, and as it should be; `PublishError` if a notebook or the place of the table is missing."""
    now = (folder().parent / "README.md").read_text(encoding="utf-8")
    books = read_notebooks()
    tables = f"{_group_lines(books, _in_readme)}\n\n{paths_table(books, _in_readme)}"
    new, found = re.subn(rf"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{tables}\n\n{END}", now, flags=re.S)
    if found != 1:
        raise PublishError(f"README.md must hold one pair of {BEGIN} and {END}, with the table of contents between")
    return now, new


def groups(books: dict[str, Notebook]) -> dict[str, list[Notebook]]:
    """The numbered notebooks, and the others."""
    numbered = [book for book in books.values() if book.name[0].isdigit()]
    return {"The course": numbered, "Deeper": [book for book in books.values() if book not in numbered]}


def label(book: Notebook) -> str:
    """What a list calls a notebook: its number, or the name of its topic.

    Example:
        >>> label(read_notebooks()["02_zeroing"])
        '02'
    """
    return book.name.partition("_")[0] if book.name[0].isdigit() else book.name.replace("_", " ")


def paths_table(books: dict[str, Notebook], link: Link) -> str:
    """The paths through the course: how long each takes, and what to read."""
    numbered = groups(books)["The course"]
    stops = (f"{link(label(book), book)}: {', '.join(found)}" for book in numbered if (found := book.on_path(PATHS[0])))
    first, last = (link(label(books[name]), books[name]) for name in ("00_start", PROJECT))
    before = link(label(numbered[-2]), numbered[-2])
    read = (" · ".join(stops), f"{first} to {before}", f"also {last}, the project, and any topic of `deeper/`")
    rows = [f"| {path} | {_time(path_minutes(books, path))} | {what} |" for path, what in zip(PATHS, read, strict=True)]
    return "\n".join(["| path | time without breaks | what to read |", "| --- | --- | --- |", *rows])


def path_minutes(books: dict[str, Notebook], path: str) -> int:
    """The minutes of a path."""
    return ceil(sum(minutes_on(book, path) for book in books.values()))


def _in_readme(text: str, book: Notebook) -> str:
    return f"[{text}]({book.path.relative_to(folder().parent).as_posix()})"


def _group_lines(books: dict[str, Notebook], link: Link) -> str:
    """A line for each group, with its minutes and its notebooks."""
    numbered, deeper = groups(books).values()
    course = " · ".join(f"{link(label(book), book)} {book.title.split(':')[0]}" for book in numbered)
    topics = " · ".join(link(label(book), book) for book in deeper)
    return f"- **The course**: {course}\n- **Deeper**, one topic each: {topics}"


def _time(minutes: int) -> str:
    return f"{minutes} minutes" if minutes <= 90 else f"about {round(minutes / 30) / 2:g} hours"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.publish.contents",
        description="Writes the tables of README.md.",
    )
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    options = parser.parse_args(arguments)
    try:
        now, new = readme()
        if now != new and not options.check:
            (folder().parent / "README.md").write_text(new, encoding="utf-8")
    except (OSError, PublishError) as problem:
        print(f"contents: {problem}", file=sys.stderr)
        return 2
    if now != new:
        print(f"README.md {'is out of date' if options.check else 'updated'}")
    return int(options.check and now != new)


if __name__ == "__main__":
    sys.exit(main())
