"""The course's notebooks, and the facts that they show, as docs/ and the tests read them.

What a cell asks and answers is not read from its text: beside each display the course stores as
JSON what it is.
"""

import csv
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).parents[1]
COURSE = "application/vnd.course+json"  # the type of that JSON, which has a `kind`
SHEET = "[cheat sheet](cheatsheet.pdf)"  # as a notebook links it
PROJECT = "12_project"  # takes a day of its own
_TITLE = re.compile(r"# (?P<title>.+)\n\n\*\*(?P<minutes>\d+) minutes.*\*\*\n\n\*(?P<question>[^*\n]+)\*(?:\n|$)")


class Notebook:
    """A notebook of the course: its title, its question, its minutes, and its cells.

    Example:
        >>> notebook = Notebook(ROOT / "notebooks" / "02_zeroing.ipynb")
        >>> notebook.name, notebook.title, notebook.label
        ('02_zeroing', 'Zeroing: where it belongs', '02')
    """

    def __init__(self, path: Path):
        self.path, self.name = path, path.stem
        self.node: NotebookNode = nbformat.read(path, as_version=4)
        self.cells: list[NotebookNode] = self.node.cells
        title = _TITLE.match(self.cells[0].source)
        if not title:
            raise ValueError(f"{path}: the first cell must hold a title, a line '**N minutes ...**', and a *question*")
        self.title, self.question, self.minutes = title["title"], title["question"], int(title["minutes"])

    @property
    def numbered(self) -> bool:
        """Whether it is one of the course's, and not one of `deeper/`."""
        return self.name[0].isdigit()

    @property
    def label(self) -> str:
        """What a list calls it: its number, or the name of its topic."""
        return self.name[:2] if self.numbered else self.name.replace("_", " ")

    @cached_property
    def code(self) -> list[NotebookNode]:
        return [cell for cell in self.cells if cell.cell_type == "code"]

    @cached_property
    def prose(self) -> str:
        return "\n".join(cell.source for cell in self.cells if cell.cell_type == "markdown")

    @property
    def sections(self) -> list[str]:
        """The names of its sections: "Why", "Step 1"."""
        return [section_of(heading) for heading in re.findall(r"^## (.+)$", self.prose, flags=re.M)]

    @property
    def short(self) -> list[str]:
        """Its sections on the 90-minute path, as its title cell says; none if it isn't there."""
        line = re.search(r"^\*\*On the 90-minute path:\*\* ([^.\n]*)\.", self.cells[0].source, flags=re.M)
        return line[1].split(", ") if line else []

    @property
    def instructor(self) -> str:
        """What only an instructor reads, from `docs/instructor`; empty if there is nothing."""
        notes = ROOT / "docs" / "instructor" / f"{self.name}.md"
        return notes.read_text(encoding="utf-8").strip() if notes.is_file() else ""

    def displays(self, kind: str) -> list[dict]:
        """What was displayed of one kind: "prediction", "reveal", "verdict", "cards"..."""
        return [display for cell in self.code for display in displays(cell) if display["kind"] == kind]

    @property
    def predictions(self) -> list[dict]:
        """Each with its `question` and `options`."""
        return self.displays("prediction")

    @property
    def cards(self) -> list[tuple[str, str]]:
        """The questions and answers of its recall cards."""
        return [(question, answer) for shown in self.displays("cards") for question, answer in shown["cards"]]


def read_notebooks() -> dict[str, Notebook]:
    """All notebooks by name, in the order of the course.

    Raises:
        ValueError: If one was saved before all of its cells had run: what it asks and answers is in
            their outputs.
    """
    folder = ROOT / "notebooks"
    books = [Notebook(path) for path in [*sorted(folder.glob("*.ipynb")), *sorted(folder.glob("deeper/*.ipynb"))]]
    for book in books:
        if not all(cell.execution_count for cell in book.code):
            raise ValueError(f"{book.path} was saved before all of its cells had run; run docs/execute.py on it")
    return {book.name: book for book in books}


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def claims(cell: NotebookNode) -> list[str]:
    """The ids of the facts that a cell shows."""
    return [tag.removeprefix("claim:") for tag in tags(cell) if tag.startswith("claim:")]


def is_folded(cell: NotebookNode, part: str) -> bool:
    """Whether the "source" or the "outputs" of a cell are folded in JupyterLab."""
    return cell.metadata.get("jupyter", {}).get(f"{part}_hidden", False)


def displays(cell: NotebookNode) -> list[dict]:
    """What the outputs of a cell are to the course, each with its `kind`."""
    return [output.data[COURSE] for output in cell.get("outputs", []) if COURSE in output.get("data", {})]


def text_of(output: NotebookNode) -> str:
    """The plain text of an output."""
    return output.get("text", output.get("data", {}).get("text/plain", "")).rstrip("\n")


def section_of(heading: str) -> str:
    """The section that a heading opens: "Step 1" of "Step 1 · What does `step()` do?"."""
    return heading.split(" · ")[0]


def relinked(text: str, link: Callable[[str, str], str]) -> str:
    """Markdown with its links to notebooks replaced by `link(text, name of the notebook)`.

    Example:
        >>> relinked("See [02](02_zeroing.ipynb#step-1).", lambda text, name: f"{text} in {name}")
        'See 02 in 02_zeroing.'
    """
    links = r"\[([^\[\]]+)\]\((?:\.\./)*(?:notebooks/)?(?:deeper/)?(\w+)\.ipynb(?:#[^)]*)?\)"
    return re.sub(links, lambda found: link(found[1], found[2]), text)


class Reading(NamedTuple):
    """What there is to read and to do, and the minutes that it takes.

    Attributes:
        words: Of prose, tables and recall cards, also in folds.
        lines: Of visible code.
        predictions: Questions to think about.
        figures: Pictures to look at.
        exercises: The minutes that exercises state.
    """

    words: int
    lines: int
    predictions: int
    figures: int
    exercises: int

    @property
    def minutes(self) -> float:
        return self.words / 180 + self.lines / 12 + 0.75 * self.predictions + 0.5 * self.figures + self.exercises

    @property
    def doing(self) -> float:
        """The minutes in which a learner chooses or writes."""
        return 0.75 * self.predictions + self.exercises


def reading(notebook: Notebook, sections: list[str] | None = None) -> Reading:
    """What there is to read in a notebook or some of its sections, without links and code.

    Example:
        >>> notebook = Notebook(ROOT / "notebooks" / "02_zeroing.ipynb")
        >>> reading(notebook, ["Why", "Step 1"]).minutes < reading(notebook).minutes
        True
    """
    section, prose, lines, predictions, figures = "", "", 0, 0, 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for piece in re.split(r"^(?=## )", cell.source, flags=re.M):
                if heading := re.match(r"## (.+)", piece):
                    section = section_of(heading[1])
                prose += piece + "\n" if sections is None or section in sections else ""
        elif sections is None or section in sections:
            data = [output.get("data", {}) for output in cell.outputs]
            prose += "\n".join(map(_worded, data)) + "\n"
            lines += 0 if is_folded(cell, "source") else sum(bool(line.strip()) for line in cell.source.splitlines())
            predictions += sum(each.get(COURSE, {}).get("kind") == "prediction" for each in data)
            figures += sum("image/png" in each or "data:image" in each.get("text/markdown", "") for each in data)
    plain = re.sub(r"```.*?```|<!--.*?-->|<[^>]+>|\]\([^)]*\)", " ", prose, flags=re.S)
    exercises = re.findall(r"^\*\*(?:\w+ exercise, )?(\d+) minutes\.\*\*", prose, flags=re.M)
    return Reading(len(re.findall(r"\S*\w\S*", plain)), lines, predictions, figures, sum(map(int, exercises)))


def _worded(data: dict) -> str:
    """What is to be read of an output: an explanation, cards, or a table."""
    course = data.get(COURSE, {})
    cards = "\n".join(f"{question} {answer}" for question, answer in course.get("cards", ()))
    return course.get("because", "") or cards or data.get("text/html", "") * ("<table" in data.get("text/html", ""))


@dataclass(frozen=True)
class Fact:
    """A statement of the course, and what is commonly believed.

    Attributes:
        id: Its name in `data/facts`, and in the tag of the cell that shows it: `claim:ID`.
        notebook: The notebook that shows it.
        statement: What holds, with its scope.
        belief: What people say.
        verdict: What the belief is: "true", "true-if", "imprecise", "wrong", "outdated" or
            "missing".
        basis: What the statement rests on: "executed", "recorded", "cited" or "derived".
        falsifier: What makes an executed fact's cell fail: a `breakage` of tests/falsifiers, or in
            the cell `new` instead of `old`.
    """

    id: str
    notebook: str
    statement: str
    belief: str
    verdict: str
    basis: str
    falsifier: dict[str, str] = field(default_factory=dict)


def read_facts() -> dict[str, Fact]:
    """All facts by id, notebook by notebook."""
    found: dict[str, Fact] = {}
    for path in sorted((ROOT / "data" / "facts").glob("*.toml")):
        for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
            if name in found:
                raise ValueError(f"{path}: the fact {name} is in {found[name].notebook}, too")
            found[name] = Fact(name, path.stem, **table)
    return found


def read_claims() -> list[dict[str, str]]:
    """Common sources in our words: `id`, `kind`, `claim`, `verdict`, the `fact` that answers."""
    with (ROOT / "data" / "claims.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def in_words(verdict: str) -> str:
    """A verdict of a fact or a claim, for people."""
    words = {"true-if": "true under conditions", "missing": "seldom said", "resolve": "sources disagree"}
    return words.get(verdict, verdict)


def repository() -> str:
    """The course's host, `owner/name`, as pyproject.toml names it; empty if it has none."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["tool"]["course"]["repository"]
