"""Runs the editions for Colab with the Python that runs this, each in an empty folder.

    python docs/colab.py
    VENV/bin/python tests/colab/run_editions.py build/colab

VENV is an environment of tests/colab/requirements.txt, without this package. An edition fails if a
cell does, or if what it prints differs from the committed notebook. Exit status 1 if one fails.
"""

import importlib.util
import os
import re
import shutil
import sys
import tempfile
from itertools import groupby
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

COMMITTED = Path(__file__).parent.parent.parent / "notebooks"


def run(edition: Path) -> str:
    """What is wrong with an edition; empty if it prints what the committed notebook prints."""
    notebook = nbformat.read(edition, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "an edition has no outputs"
    with tempfile.TemporaryDirectory() as empty:
        alone = Path(shutil.copy(edition, empty))
        try:
            NotebookClient(notebook, timeout=300, resources={"metadata": {"path": alone.parent}}).execute()
        except CellExecutionError as error:
            return str(error)[-1500:]
        left = sorted(path.name for path in alone.parent.iterdir())
    if left != [edition.name]:
        return f"it left files behind: {left}"
    expected = {cell.id: said(cell) for cell in nbformat.read(next(COMMITTED.rglob(edition.name)), as_version=4).cells}
    for cell in notebook.cells:
        compared = "nbval-ignore-output" not in cell.metadata.get("tags", []) and cell.id in expected
        if cell.cell_type == "code" and compared and said(cell) != expected[cell.id]:
            return f"{cell.source[:200]}\nprints\n{said(cell)}\ninstead of\n{expected[cell.id]}"
    return ""


def said(cell) -> str:
    """The text of a cell's outputs in order; neighbouring pieces of one stream are one."""
    pieces = groupby(cell.get("outputs", []), key=lambda output: output.get("name") or id(output))
    parts = ["".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in some) for _, some in pieces]
    text = "\n".join(part.rstrip("\n") for part in parts)
    return re.sub(r"\[([^\[\]]+)\]\([\w./]*\.ipynb\)", r"\1", text)  # an edition has no links to files


def main() -> int:
    if importlib.util.find_spec("course_utils"):
        print("course_utils is installed here, so that this would not show that the editions bring it", file=sys.stderr)
        return 2
    os.environ.pop("PYTHONPATH", None)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")  # a bar comes only where a machine is slow
    editions = [path for argument in sys.argv[1:] for path in sorted(Path(argument).glob("*.ipynb"))]
    wrong = 0
    for edition in editions:
        problem = run(edition)
        wrong += bool(problem)
        print(f"{edition.stem}: {problem or 'ok'}", flush=True)
    return 1 if wrong or not editions else 0


if __name__ == "__main__":
    sys.exit(main())
