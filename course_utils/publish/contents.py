"""What stands in more than one file: `python -m course_utils.publish.contents`.

The tables of contents and the paths through the course are generated from the notebooks' title cells, for README.md,
between the comments `<!-- contents -->` and `<!-- /contents -->`, and for the site. The repository's address goes from
pyproject.toml into the notebooks' set-up cells, which in Colab install the package from there. With `--check` nothing
is written, and the exit status is 1 if anything is out of date.
"""

import argparse
import re
import sys
from collections.abc import Callable
from math import ceil
from pathlib import Path

import nbformat

from course_utils.publish import PublishError
from course_utils.publish.colab import hosted, with_address
from course_utils.publish.notebook import PATHS, PROJECT, Notebook, folder, read_notebooks
from course_utils.publish.reading import minutes_on

BEGIN, END = "<!-- contents -->", "<!-- /contents -->"
Link = Callable[[str, Notebook], str]  # a text that leads to a notebook


def outdated() -> dict[Path, str]:
    """The files that are out of date, each with the content that it should have.

    Raises:
        PublishError: If a notebook cannot be read, or the place of what is written is missing.
    """
    top, books = folder().parent, read_notebooks()
    repository = hosted(top / "pyproject.toml")
    texts = {book.path: nbformat.writes(with_address(book, repository)) + "\n" for book in books.values()}
    texts[top / "README.md"] = _readme((top / "README.md").read_text(encoding="utf-8"), books)
    return {path: text for path, text in texts.items() if path.read_text(encoding="utf-8") != text}


def _readme(now: str, books: dict[str, Notebook]) -> str:
    tables = f"{_group_lines(books, _in_readme)}\n\n{paths_table(books, _in_readme)}"
    new, found = re.subn(rf"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{tables}\n\n{END}", now, flags=re.S)
    if found != 1:
        raise PublishError(f"README.md must hold one pair of {BEGIN} and {END}, with the table of contents between")
    return new


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
        description="Writes the tables of README.md and the set-up cells.",
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
