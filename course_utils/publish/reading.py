"""How long a notebook, or some of its sections, takes to read, to run and to do."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from course_utils.publish.notebook import Notebook, is_folded, section_of

WORDS_A_MINUTE, LINES_A_MINUTE = 180, 12


@dataclass(frozen=True)
class Reading:
    """What there is to read and to do.

    Attributes:
        words: The words of prose, without addresses of links, tables' rules and fenced code.
        lines: The lines of code that are not empty, without folded cells: solutions, proofs, questions and figures.
        exercises: The minutes that the exercises state, without those "at home".
    """

    words: int
    lines: int
    exercises: int

    @property
    def minutes(self) -> float:
        """What reading, running and the exercises take."""
        return self.words / WORDS_A_MINUTE + self.lines / LINES_A_MINUTE + self.exercises


def reading(notebook: Notebook, sections: Collection[str] = ()) -> Reading:
    """What there is to read in a notebook.

    Args:
        notebook: The notebook.
        sections: Count these sections only, such as "Step 1"; by default all, with the title and the set-up cell.

    Example:
        >>> from course_utils.publish.notebook import folder
        >>> whole = Notebook(folder() / "02_zeroing.ipynb")
        >>> reading(whole, ["Why", "Step 1"]).minutes < reading(whole).minutes
        True
    """
    wanted = [(kind, text) for section, kind, text in _pieces(notebook) if not sections or section in sections]
    prose = "\n".join(text for kind, text in wanted if kind == "markdown")
    code = "\n".join(text for kind, text in wanted if kind == "code")
    plain = re.sub(r"```.*?```|<!--.*?-->|<[^>]+>|\]\([^)]*\)", " ", prose, flags=re.S)
    exercises = re.findall(r"^\*\*(?:\w+ exercise, )?(\d+) minutes\.\*\*", prose, flags=re.M)
    return Reading(
        words=len(re.findall(r"\S*\w\S*", plain)),
        lines=sum(bool(line.strip()) for line in code.splitlines()),
        exercises=sum(map(int, exercises)),
    )


def minutes_on(notebook: Notebook, path: str) -> float:
    """The minutes of a notebook's sections on a path; 0 if it is not on the path."""
    sections = notebook.on_path(path)
    return notebook.minutes if sections == notebook.headings else reading(notebook, sections).minutes if sections else 0


def _pieces(notebook: Notebook) -> Iterator[tuple[str, str, str]]:
    """The section, the kind and the text of each cell; a cell of prose in which sections begin is cut there."""
    section = ""
    for cell in notebook.cells:
        if cell.cell_type == "code" and not is_folded(cell, "source"):
            yield section, "code", cell.source
        elif cell.cell_type == "markdown":
            for piece in re.split(r"^(?=## )", cell.source, flags=re.M):
                if heading := re.match(r"## (.+)", piece):
                    section = section_of(heading[1])
                yield section, "markdown", piece
