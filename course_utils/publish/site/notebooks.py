"""A committed notebook as a page of the site, and its solutions as a page of their own."""

import copy
import re

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook

from course_utils.practice.display import COURSE
from course_utils.publish.notebook import Notebook, as_course, claims, is_folded, relinked, tags

NEEDS_A_KERNEL = ("score",)  # displays that say nothing on a page
METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3"}, "language_info": {"name": "python"}}
FOLDED = {(True, False): "hide-input", (False, True): "hide-output", (True, True): "hide-cell"}


def page(notebook: Notebook, links: str = "") -> NotebookNode:
    """A notebook to read: what JupyterLab folds is folded, solutions are links, and nothing is run.

    Args:
        notebook: The notebook; it stays as it is.
        links: A line of Markdown below its title.
    """
    made = new_notebook(metadata=METADATA)
    for cell in notebook.cells:
        made.cells += [_anchor(claim) for claim in claims(cell)]
        if "solution" in tags(cell):
            made.cells.append(_note(f"*[Solution](../solutions/{notebook.name}.ipynb)*, on a page of its own."))
        elif cell.cell_type == "markdown":
            made.cells.append(_note(_on_one_level(cell.source)))
        else:
            made.cells.append(_code(cell))
    title, rest = made.cells[0].source.split("\n", 1)
    made.cells[0].source = f"{title}\n\n{links}\n{rest}" if links else f"{title}\n{rest}"
    return _with_ids(made)


def solutions(notebook: Notebook) -> NotebookNode | None:
    """The solutions of a notebook, each below the text of its exercise; None if it has none."""
    made, asked = new_notebook(metadata=METADATA), ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            asked = cell.source
        elif "solution" in tags(cell):
            if not made.cells:
                title = f"# Solutions: {notebook.title}\n\n[Back to the notebook](../notebooks/{notebook.name}.ipynb)"
                made.cells.append(_note(title))
            made.cells += [_note(_exercise(asked, len(made.cells) // 2 + 1, notebook.name)), _code(cell, folded=False)]
    return _with_ids(made) if made.cells else None


def _exercise(asked: str, number: int, name: str) -> str:
    """The text of an exercise, below a heading of its own."""
    text = re.sub(r"^## .*\n", "", asked, flags=re.M).strip()
    text = relinked(text, lambda said, other: f"[{said}](../notebooks/{other}.ipynb)")
    return f"## Exercise {number}\n\n{text}"


def _code(cell: NotebookNode, folded: bool = True) -> NotebookNode:
    made = copy.deepcopy(cell)
    parts = (is_folded(cell, "source"), is_folded(cell, "outputs"))
    made.metadata = {"tags": [FOLDED[parts]]} if folded and any(parts) else {}
    made.outputs = [output for output in made.outputs if as_course(output).get("kind") not in NEEDS_A_KERNEL]
    for output in made.outputs:
        output.get("data", {}).pop(COURSE, None)  # Sphinx warns of a type that it cannot show
    return made


def _on_one_level(text: str) -> str:
    """On the site all notebooks lie in one folder."""
    return relinked(text, lambda said, other: f"[{said}]({other}.ipynb)")


def _anchor(claim: str) -> NotebookNode:
    return _note(f'<span id="fact-{claim}"></span>')


def _note(text: str) -> NotebookNode:
    return new_markdown_cell(text)


def _with_ids(made: NotebookNode) -> NotebookNode:
    """The same bytes for the same notebook: nbformat's own ids are random."""
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"
    return made
