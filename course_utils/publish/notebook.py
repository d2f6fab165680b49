"""A notebook as it is written and executed: what its title says, asks, shows and claims. Only this module reads them.

What a cell asks and answers is not read from its text: beside each display, `practice` stores as JSON what it is.
"""

import re
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_utils.practice.display import COURSE
from course_utils.publish import PublishError

PATHS = ("90 minutes", "one day", "everything")  # through the course, from the shortest to the longest
PROJECT = "12_project"  # takes a day of its own
_TITLE = re.compile(r"# (?P<title>.+)\n\n\*\*(?P<minutes>\d+) minutes.*\*\*\n\n\*(?P<question>[^*\n]+)\*(?:\n|$)")


class Notebook:
    """A notebook of the course.

    Raises:
        PublishError: If it cannot be read, or its first cell does not hold title, minutes and question.

    Example:
        >>> notebook = Notebook(folder() / "02_zeroing.ipynb")
        >>> notebook.name, notebook.title
        ('02_zeroing', 'Zeroing: where it belongs')
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

    def on_path(self, path: str) -> list[str]:
        """The sections of it that are on a path of `PATHS`; none if it is not on the path.

        "one day" are the numbered notebooks but the project. What belongs to the 90 minutes stands in the title cell:
        `**On the 90-minute path:** Step 1, Your turn.`

        Raises:
            PublishError: If that line names a section that the notebook doesn't have.
        """
        if path == "everything" or (path == "one day" and self.name[0].isdigit() and self.name != PROJECT):
            return self.headings
        line = re.search(r"^\*\*On the 90-minute path:\*\* ([^.\n]*)\.", self.cells[0].source, flags=re.M)
        if path == "one day" or not line:
            return []
        sections = line[1].split(", ")
        if unknown := [section for section in sections if section not in self.headings]:
            raise PublishError(f"{self.path}: the 90-minute path names {', '.join(unknown)}, which it doesn't have")
        return sections

    @property
    def code(self) -> list[NotebookNode]:
        """The cells of code."""
        return [cell for cell in self.cells if cell.cell_type == "code"]

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
        """What only an instructor reads, from `docs/instructor`; empty if there is nothing."""
        notes = folder().parent / "docs" / "instructor" / f"{self.name}.md"
        return notes.read_text(encoding="utf-8").strip() if notes.is_file() else ""

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
    links = r"\[([^\[\]]+)\]\((?:\.\./|deeper/)?(\w+)\.ipynb(?:#[^)]*)?\)"
    return re.sub(links, lambda found: link(found[1], found[2]), text)
