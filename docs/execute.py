"""Runs notebooks and leaves what is committed: `python docs/execute.py notebooks/*.ipynb`.

Widgets' ids, the state of widgets and times go; text, HTML, images and the version of Python stay.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from jupyter_client.jsonutil import parse_date
from nbclient import NotebookClient
from tqdm import tqdm

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LONG = 3.0  # seconds
WIDGET = "application/vnd.jupyter.widget-view+json"


def execute(path: Path) -> None:
    """Runs one notebook from the top and writes it back; it stays as it was if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    os.environ.setdefault("TQDM_DISABLE", "1")  # a bar comes only where a machine is slow
    os.environ["MY_LOOP"] = "off"
    where = {"metadata": {"path": path.parent}}
    NotebookClient(notebook, timeout=120, resources=where).execute()
    for number, taken in silent(notebook):
        tqdm.write(f"{path.stem}: cell {number} took {taken:.0f} seconds and doesn't say so")
    clean(notebook)
    nbformat.write(notebook, path)


def silent(notebook: nbformat.NotebookNode) -> Iterator[tuple[int, float]]:
    """The cells that took long without a word of seconds or a bar; set-up, which imports, isn't asked."""
    for number, cell in enumerate(notebook.cells):
        times = cell.metadata.get("execution", {})
        if "iopub.execute_input" in times and not re.search(r"seconds|tqdm\(|# Set-up\.", cell.source):
            taken = parse_date(times["iopub.status.idle"]) - parse_date(times["iopub.execute_input"])
            if taken.total_seconds() > LONG:
                yield number, taken.total_seconds()


def clean(notebook: nbformat.NotebookNode) -> None:
    """Removes from a notebook what differs from run to run or from machine to machine."""
    notebook.metadata = {"kernelspec": KERNEL, "language_info": notebook.metadata.language_info}
    for cell in notebook.cells:
        for key in set(cell.metadata) - {"tags", "jupyter"}:
            del cell.metadata[key]
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata["cellView"] = "form"  # Colab's word for it
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Outputs in order, with neighbouring pieces of a stream as one: where they end is chance."""
    kept: list[nbformat.NotebookNode] = []
    for output in outputs:
        if kept and output.output_type == "stream" and output.name == kept[-1].get("name"):
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


if __name__ == "__main__":
    for name in tqdm(sys.argv[1:], desc="notebooks"):
        execute(Path(name))
