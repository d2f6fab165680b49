"""Runs notebooks in place and leaves in them only what is committed: `python tests/execute.py notebooks/*.ipynb`.

Widgets' ids, the state of widgets, times and versions go; text, HTML and images stay.
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from tqdm import tqdm

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
WIDGET = "application/vnd.jupyter.widget-view+json"


def execute(path: Path) -> None:
    """Runs one notebook from the top and writes it back; it stays as it was if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    os.environ["COURSE_SCORE"] = "off"  # what a learner has kept beside the notebook is not shown
    os.environ.setdefault("TQDM_DISABLE", "1")  # a bar comes only where a machine is slow
    where = {"metadata": {"path": path.parent}}
    NotebookClient(notebook, timeout=120, coalesce_streams=True, resources=where).execute()
    clean(notebook)
    nbformat.write(notebook, path)


def clean(notebook: nbformat.NotebookNode) -> None:
    """Removes from a notebook what differs from run to run or from machine to machine."""
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    for cell in notebook.cells:
        for key in set(cell.metadata) - {"tags", "jupyter"}:
            del cell.metadata[key]
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)


if __name__ == "__main__":
    for name in tqdm(sys.argv[1:], desc="notebooks"):
        execute(Path(name))
