"""Writes what stands in more than one file: `python docs/contents.py`.

The list of paths in README.md, between `<!-- paths -->` and `<!-- /paths -->`, and the workshop plans
in docs/instructors.md are made from the notebooks' title cells. The repository's address goes from
pyproject.toml into the notebooks' set-up cells, which in Colab install the package from there.
"""

import copy
import re
from pathlib import Path

import nbformat

import plans
from notebooks import PROJECT, ROOT, Notebook, read_notebooks, reading, repository

MISSING = 'if importlib.util.find_spec("course_utils") is None:\n'  # then one line of the set-up cell says what to do
TOPICS = {  # of deeper/, by what one asks
    "Memory and precision": ("memory", "checkpoints", "low_precision", "skipped_steps"),
    "Ranks": ("who_divides", "ddp_options", "shards_and_pipelines"),
    "Code": ("frameworks", "hooks", "several_optimizers", "moe"),
    "Data": ("rewards", "packing"),
    "Theory": ("should_you_accumulate", "noise_scale"),
    "Inside PyTorch": ("gradients_by_hand", "who_writes_grad", "how_the_auditor_knows"),
}
NOT_HERE = 'Run pip install -e ".[lab]" beside README.md, then restart here.'


def contents() -> dict[Path, str]:
    """README.md, docs/instructors.md and the notebooks, as they should be."""
    books, hosted = read_notebooks(), repository()
    install = f'get_ipython().run_line_magic("pip", "install -q git+https://github.com/{hosted}")'
    line = install if hosted else f"raise SystemExit({NOT_HERE!r})"
    found = {book.path: with_line(book, line) for book in books.values()}
    shown = [f"{part}\n" for path in plans.AIMS for part in plans.parts(path, plans.stops(path, books))]
    pages = [with_part(ROOT / "README.md", "paths", paths(books))]
    pages += [with_part(ROOT / "docs" / "instructors.md", "plans", "\n".join(["", *shown]))]
    return dict(pages) | {path: nbformat.writes(node) + "\n" for path, node in found.items()}


def with_part(path: Path, name: str, part: str) -> tuple[Path, str]:
    """A page's path, and its text with what stands between two comments replaced."""
    pattern = rf"(<!-- {name} -->\n).*(\n<!-- /{name} -->)"
    text, found = re.subn(pattern, rf"\1{part}\2", path.read_text(encoding="utf-8"), flags=re.S)
    if not found:
        raise ValueError(f"{path} must hold <!-- {name} --> and <!-- /{name} -->, with a line between them")
    return path, text


def with_line(book: Notebook, line: str) -> nbformat.NotebookNode:
    """A notebook whose set-up cell runs a line where the package is missing; else as it is."""
    made = copy.deepcopy(book.node)
    cell = next(cell for cell in made.cells if cell.cell_type == "code")
    cell.source, found = re.subn(rf"({re.escape(MISSING)})    .*\n", lambda m: f"{m[1]}    {line}\n", cell.source)
    if not found:
        raise ValueError(f"{book.path}: the set-up cell must hold {MISSING!r}")
    return made


def topics(books: dict[str, Notebook]) -> dict[str, list[Notebook]]:
    """The notebooks of deeper/ by what they are about; a name of `TOPICS` that isn't there is left out."""
    found = {about: [books[name] for name in names if name in books] for about, names in TOPICS.items()}
    return {about: some for about, some in found.items() if some}


def paths(books: dict[str, Notebook]) -> str:
    """The three paths, each with what it adds to the one before."""
    day = [book for book in books.values() if book.numbered and book.name != PROJECT]

    def links(chosen: list[Notebook]) -> str:
        said = (f"{book.label} {book.title.split(':')[0]}" if book.numbered else book.label for book in chosen)
        return ", ".join(f"[{text}]({_path(book)})" for text, book in zip(said, chosen, strict=True))

    hours = round(sum(book.minutes for book in day) / 30) / 2
    return "\n".join(
        [
            f"- **90 minutes**, some sections of each: {links([book for book in day if book.short])}",
            f"- **A day**, about {hours:g} hours, all of these and {links([book for book in day if not book.short])}",
            f"- **Deeper**: {links([books[PROJECT]])}, and topics",
            *(f"  - {about}: {links(some)}" for about, some in topics(books).items()),
        ]
    )


def minutes_of_the_short_path(books: dict[str, Notebook]) -> float:
    """What the sections of the 90-minute path take."""
    return sum(reading(book, book.short).minutes for book in books.values() if book.short)


def _path(book: Notebook) -> str:
    return book.path.relative_to(ROOT).as_posix()


def main() -> None:
    for path, text in contents().items():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"{path.relative_to(ROOT)} is up to date now")


if __name__ == "__main__":
    main()
