"""A notebook as it is written and executed: what its title says, asks, shows and claims. Only this module reads them.

What a cell asks and answers is not read from its text: beside each display, `practice` stores as JSON what it is.
"""

import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_utils.practice.display import COURSE
from course_utils.publish import PublishError

PATHS = ("90 minutes", "one day", "everything")  # through the course, from the shortest to the longest
WITHOUT_A_KERNEL = (  # the end of the title cells, for those who read a notebook on GitHub; not for paper
    "*Reading a copy that doesn't run, on GitHub for instance? Answer each question before you scroll on: what "
    "JupyterLab folds away is open there.*"
)
_TITLE = re.compile(r"# (?P<title>.+)\n\n\*\*(?P<minutes>\d+) minutes.*\*\*\n\n\*(?P<question>[^*\n]+)\*(?:\n|$)")


class Notebook:
    """A notebook of the course.

    Raises:
        PublishError: If it cannot be read, or its first cell does not hold title, minutes and question.

    Example:
        >>> notebook = Notebook(folder() / "02_zeroing.ipynb")
        >>> notebook.name, notebook.title
        ('02_zeroing', 'Zeroing: when, and how we know')
    """

    def __init__(self, path: Path):
        self.path, self.name = path, path.stem
        try:
            self.node: NotebookNode = nbformat.read(path, as_version=4)
            self.cells: list[NotebookNode] = self.node.cells
        except Exception as problem:  # nbformat raises whatever its converters run into
            raise PublishError(f"{path} cannot be read as a notebook: {problem}") from problem
        found = _TITLE.match(self.cells[0].source if self.cells else "")
        if not found:
            raise PublishError(
                f"{path}: the first cell must hold a title, a line '**N minutes ...**' and a question in italics"
            )
        self.title, self.question, self.minutes = found["title"], found["question"], int(found["minutes"])

    @cached_property
    def paths(self) -> dict[str, list[str]]:
        """The paths of `PATHS` that lead through it, each with its sections there; none are named if it is all of it.

        They are read from the title cell: `**Paths:** 90 minutes (Why, Step 1) · one day · everything. **Skip** ...`
        Without this line a notebook is on "everything", and on "one day" if its number has no letter.

        Raises:
            PublishError: If the line names an unknown path or section.
        """
        line = re.search(r"^\*\*Paths:\*\* ([^.\n]*)", self.cells[0].source, flags=re.M)
        if not line:
            return {path: [] for path in PATHS[1:] if path == "everything" or re.match(r"\d+_", self.name)}
        found = {}
        for path in line[1].split(" · "):
            name, _, sections = path.removesuffix(")").partition(" (")
            found[name] = sections.split(", ") if sections else []
            if name not in PATHS or not set(found[name]) <= set(self.headings):
                raise PublishError(f"{self.path}: {path!r} names a path that is none of {PATHS}, or no section of it")
        return found

    @property
    def code(self) -> list[NotebookNode]:
        """The cells of code."""
        return [cell for cell in self.cells if cell.cell_type == "code"]

    @property
    def for_learners(self) -> list[NotebookNode]:
        """All cells but the one for the instructor."""
        return [cell for cell in self.cells if "instructor" not in tags(cell)]

    @property
    def prose(self) -> str:
        """The text of all cells that are not code."""
        return "\n".join(cell.source for cell in self.cells if cell.cell_type == "markdown")

    @property
    def headings(self) -> list[str]:
        """The headings of its sections, without the questions that follow a dot: "Step 1", "See it"."""
        return [section_of(heading) for heading in re.findall(r"^## (.+)$", self.prose, flags=re.M)]

    @property
    def instructor(self) -> str:
        """What the instructor's cell says, unfolded."""
        folded = "\n\n".join(cell.source for cell in self.cells if "instructor" in tags(cell))
        return re.sub(r"<details>\s*<summary>.*?</summary>(.*?)</details>", r"\1", folded, flags=re.S).strip()

    @cached_property
    def sections(self) -> dict[str, int]:
        """The minutes of its sections, from the instructor's cell. Short sections share a row: "Why, Predict"."""
        rows = re.findall(r"^\| ([^|]+?) \| (\d+) \|$", self.instructor, flags=re.M)
        return {names: int(minutes) for names, minutes in rows}

    def displays(self, kind: str) -> list[dict]:
        """What was displayed of one kind: "prediction", "reveal", "verdict", "cards", "score", "explore"..."""
        found = (as_course(output) for cell in self.code for output in cell.outputs)
        return [display for display in found if display.get("kind") == kind]

    @property
    def predictions(self) -> list[dict]:
        """Each with its `question` and `options`."""
        return self.displays("prediction")

    @property
    def exercises(self) -> list[str]:
        """Their names, in order."""
        return list(dict.fromkeys(verdict["exercise"] for verdict in self.displays("verdict")))

    @property
    def cards(self) -> list[tuple[str, str]]:
        """The questions and answers of its recall cards."""
        return [(question, answer) for cards in self.displays("cards") for question, answer in cards["cards"]]


def folder() -> Path:
    """Where the notebooks lie: beside this package; if it was installed without them, in `notebooks` of this folder."""
    beside = Path(__file__).parents[2] / "notebooks"
    return beside if any(beside.glob("*.ipynb")) else Path("notebooks").absolute()


def read_notebooks() -> dict[str, Notebook]:
    """All notebooks by name, in the order of the course; `PublishError` if there is none, or one cannot be read."""
    paths = [*sorted(folder().glob("*.ipynb")), *sorted(folder().glob("deeper/*.ipynb"))]
    found = {path.stem: Notebook(path) for path in paths}
    if not found:
        raise PublishError(f"there are no notebooks in {folder()}; run this in the folder of the course")
    return found


def chosen(notebooks: dict[str, Notebook], names: list[str]) -> list[str]:
    """The names, each once, or those of all notebooks; an unknown one raises `PublishError`."""
    for name in names:
        if name not in notebooks:
            raise PublishError(f"there is no notebook {name!r}, only {', '.join(notebooks)}")
    return list(dict.fromkeys(names)) or list(notebooks)


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def claims(cell: NotebookNode) -> list[str]:
    """The ids of the facts that a cell shows."""
    return [tag.removeprefix("claim:") for tag in tags(cell) if tag.startswith("claim:")]


def is_folded(cell: NotebookNode, part: str) -> bool:
    """Whether the "source" or the "outputs" of a cell are folded in JupyterLab."""
    return cell.metadata.get("jupyter", {}).get(f"{part}_hidden", False)


def as_course(output: NotebookNode) -> dict:
    """What an output is to the course, with its `kind`; empty for all that is not displayed by `practice`."""
    return output.get("data", {}).get(COURSE, {})


def text_of(output: NotebookNode) -> str:
    """The plain text of an output, without the ends of its lines at the end."""
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
    return re.sub(r"\[([^\[\]]+)\]\((?:\.\./|deeper/)?(\w+)\.ipynb(?:#[^)]*)?\)", lambda found: link(found[1], found[2]), text)
