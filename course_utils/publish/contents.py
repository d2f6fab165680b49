"""The tables of contents and the paths through the course: `python -m course_utils.publish.contents`.

They are generated from the notebooks' title cells. README.md lists the notebooks by group, and the notebook 00_start
each with its question; both hold the paths below, between the comments `<!-- contents -->` and `<!-- /contents -->`.
Every title cell that names its paths gets a last line for those who read the notebook without a kernel. With `--check`
nothing is written, and the exit status is 1 if anything is out of date.
"""

import argparse
import re
import sys
from collections.abc import Callable, Collection
from math import ceil
from pathlib import Path

import nbformat

from course_utils.publish import PublishError
from course_utils.publish.notebook import PATHS, WITHOUT_A_KERNEL, Notebook, folder, read_notebooks
from course_utils.publish.reading import reading

BEGIN, END = "<!-- contents -->", "<!-- /contents -->"
GROUPS = {"Basics": 0, "Accumulation": 3, "Production": 5, "Scale": 7}  # the number of the first notebook of each


def outdated() -> dict[Path, str]:
    """The files that are out of date, each with the content that it should have.

    Raises:
        PublishError: If a notebook cannot be read, or one of the two tables has lost its place.
    """
    notebooks = read_notebooks()
    books, start = list(notebooks.values()), notebooks["00_start"]
    readme = folder().parent / "README.md"
    link = "[`{0}`](notebooks/{1}.ipynb)".format
    contents = f"{_group_lines(notebooks, link)}\n\n{paths_table(books, link)}"
    now = {readme: _with_table(readme.read_text(encoding="utf-8"), contents, readme)}

    cell = next((cell for cell in start.cells if BEGIN in cell.source), start.cells[0])
    contents = _contents([book for book in books if book is not start], books, "[{0}]({1}.ipynb)".format)
    cell.source = _with_table(cell.source, contents, start.path)
    for book in books:
        title = book.cells[0]
        if "**Paths:**" in title.source:
            title.source = f"{title.source.replace(WITHOUT_A_KERNEL, '').rstrip()}\n\n{WITHOUT_A_KERNEL}"
            now[book.path] = nbformat.writes(book.node) + "\n"
    now[start.path] = nbformat.writes(start.node) + "\n"
    return {path: text for path, text in now.items() if path.read_text(encoding="utf-8") != text}


def groups(books: dict[str, Notebook]) -> list[tuple[str, list[Notebook]]]:
    """The notebooks in their groups, each with its title."""
    found: dict[str, list[Notebook]] = {title: [] for title in GROUPS}
    for book in books.values():
        number = int(re.match(r"\d+", book.name)[0])
        found[[title for title, first in GROUPS.items() if first <= number][-1]].append(book)
    return list(found.items())


def _group_lines(books: dict[str, Notebook], link: Callable[[str, str], str]) -> str:
    """A line for each group, with its minutes and its notebooks."""
    return "\n".join(
        f"- **{title}**, {sum(book.minutes for book in members)} minutes: "
        + " · ".join(f"{link(book.name.partition('_')[0], book.name)} {book.title.split(':')[0]}" for book in members)
        for title, members in groups(books)
    )


def paths_table(books: Collection[Notebook], link: Callable[[str, str], str]) -> str:
    """The paths through the course: how long each takes, and what to read."""
    rows = [f"| {path} | {_time(path_minutes(books, path))} | {_stops(books, path, link)} |" for path in PATHS]
    return "\n".join(["| path | time without breaks | what to read |", "| --- | --- | --- |", *rows])


def _contents(listed: Collection[Notebook], books: Collection[Notebook], link: Callable[[str, str], str]) -> str:
    """A table of the notebooks that are listed, and one of the paths through all of them."""
    rows = [f"| {link(book.name, book.name)} | {book.question} | {book.minutes} |" for book in listed]
    table = ["| notebook | its question | minutes |", "| --- | --- | --- |", *rows]
    return "\n".join([*table, "", paths_table(books, link)])


def path_minutes(books: Collection[Notebook], path: str) -> int:
    """The minutes of a path: what its sections take, and of notebooks that are on it as a whole what they state."""
    on_it = [(book, book.paths[path]) for book in books if path in book.paths]
    return ceil(sum(reading(book, sections).minutes if sections else book.minutes for book, sections in on_it))


def _time(minutes: int) -> str:
    return f"{minutes} minutes" if minutes <= 90 else f"about {round(minutes / 30) / 2:g} hours"


def _stops(books: Collection[Notebook], path: str, link: Callable[[str, str], str]) -> str:
    """The notebooks of a path."""
    on_it = [book for book in books if path in book.paths]
    if len(on_it) == len(books):
        return "all notebooks, in this order"
    links = " · ".join(link(book.name.partition("_")[0], book.name) for book in on_it)
    return links + (
        ", of each the sections that its first cell names" if any(book.paths[path] for book in on_it) else ""
    )


def _with_table(text: str, table: str, path: Path) -> str:
    new, found = re.subn(rf"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{table}\n\n{END}", text, flags=re.S)
    if found != 1:
        raise PublishError(f"{path} must hold one pair of {BEGIN} and {END}, with the table of contents between them")
    return new


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.publish.contents",
        description="Writes the tables of README.md and 00_start, and the last lines of the title cells.",
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
