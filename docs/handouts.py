"""Handouts as PDF: `python docs/handouts.py [--edition NAME] [--notebooks NAME] [--paper SIZE]`.

Pandoc turns Markdown into the markup of Typst, and Typst sets it, with the templates of
`docs/paper`. Neither needs a browser, LaTeX or a font of this machine, so two builds give the same
bytes.
"""

import argparse
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pypandoc
import typst
from tqdm import tqdm

import cheatsheet
import final_test
import plans
from editions import Handout, verbatim
from notebooks import ROOT, SHEET, Notebook, read_notebooks, relinked

PAPER = ROOT / "docs" / "paper"
# Markdown as Jupyter reads it, and names for what is in the text.
DIALECT = "commonmark+attributes+bracketed_spans+fenced_divs+pipe_tables+raw_attribute+smart+tex_math_dollars"
TITLES = {
    "learner": "Learner's handout",
    "worksheet": "Worksheet",
    "instructor": "Instructor's handout",
    "plans": "For the instructor",
    "cheatsheet": "Sheet for the wall",
    "final-test": "On the whole course",
}
BY_NOTEBOOK = ("learner", "worksheet", "instructor")
COURSE_TITLE = "Gradient accumulation and zeroing in PyTorch"

Job = tuple[str, Callable[[], bytes]]  # a file's name below the output folder, and what makes its content


def jobs(books: dict[str, Notebook], editions: list[str], names: list[str], paper: str) -> Iterator[Job]:
    """What is to be made of notebooks, by name. Pandoc and Typst work when a job is called."""
    for name in names:
        for edition in (edition for edition in BY_NOTEBOOK if edition in editions):
            text, figures = handout(books[name], edition)
            text = relinked(text, lambda said, other: f"[{said}]({other}.pdf)" if other in names else f"*{said}*")
            text = text.replace(SHEET, "cheat sheet")
            yield f"{edition}/{name}.pdf", partial(pdf, text, books[name].title, TITLES[edition], paper, figures)
    questions = [
        question._replace(text=verbatim(question.text), answer=verbatim(question.answer))
        for question in final_test.draw(1)
    ]
    sheets = {
        "plans": ("Workshop plans", partial(plans.markdown, books), "handout"),
        "cheatsheet": (COURSE_TITLE, partial(cheatsheet.markdown, books), "cheatsheet"),
        "final-test": ("Final test", partial(final_test.as_text, questions, 1, answers=True), "handout"),
    }
    for edition, (title, markdown, template) in sheets.items():
        if edition in editions:
            yield f"{edition}.pdf", partial(pdf, markdown(), title, TITLES[edition], paper, template=template)


def handout(book: Notebook, edition: str) -> tuple[str, dict[str, bytes]]:
    """The text of an edition of a notebook, and the figures that it names by file."""
    if edition == "worksheet":
        sheet = Handout(book, most_room=6)
        return sheet.worksheet(), sheet.figures
    whole = Handout(book, answers=edition == "instructor")
    return whole.markdown(), whole.figures


def pdf(
    text: str,
    title: str,
    edition: str,
    paper: str,
    figures: dict[str, bytes] | None = None,
    template: str = "handout",
) -> bytes:
    """Markdown as a PDF.

    Args:
        text: Markdown.
        title: For the head of each page.
        edition: For the head of each page.
        paper: "a4" or "letter".
        figures: PNG files by the names that the text calls them by.
        template: "handout" or "cheatsheet".
    """
    heads = ", ".join(f"{key}: {quoted(value)}" for key, value in (("title", title), ("edition", edition)))
    head = f'#import "{template}.typ": *\n#show: {template}.with({heads}, paper: "{paper}")\n'
    with TemporaryDirectory() as folder:
        for file in (*PAPER.glob("*.typ"), *PAPER.glob("*.tmTheme")):
            shutil.copy(file, folder)
        for name, png in (figures or {}).items():
            Path(folder, name).write_bytes(png)
        main = Path(folder, "main.typ")
        main.write_text(head + typst_of(text), encoding="utf-8")
        return typst.compile(main, ignore_system_fonts=True, timestamp=0)


def typst_of(text: str) -> str:
    """Markdown as Typst's markup."""
    options = [f"--lua-filter={PAPER / 'print.lua'}", "--wrap=none"]
    return pypandoc.convert_text(text, "typst-smart", format=DIALECT, extra_args=options)


def quoted(text: str) -> str:
    return json.dumps(text.replace("'", "\u2019"), ensure_ascii=False)  # in a title it can only be an apostrophe


def main() -> None:
    books = read_notebooks()
    parser = argparse.ArgumentParser(description="Prints the notebooks as handouts for a workshop, as PDF.")
    parser.add_argument("--edition", nargs="+", choices=TITLES, default=[*TITLES], help="one or more (default: all)")
    parser.add_argument("--notebooks", nargs="+", choices=books, default=[*books], metavar="NAME", help="default: all")
    parser.add_argument("--paper", type=str.lower, choices=("a4", "letter"), default="a4", help="default: a4")
    parser.add_argument("--out", type=Path, default=Path("build/handouts"), help="folder (default: build/handouts)")
    options = parser.parse_args()
    found = dict(jobs(books, options.edition, options.notebooks, options.paper))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # neither pandoc nor Typst holds Python's lock
        made = pool.map(lambda make: make(), found.values())
        for name, content in zip(found, tqdm(made, total=len(found), desc="handouts", unit="file"), strict=True):
            target = options.out / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    print(f"{len(found)} files in {options.out}")


if __name__ == "__main__":
    main()
