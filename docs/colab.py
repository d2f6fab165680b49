"""Editions of the notebooks for Colab: `python docs/colab.py [--out DIR] [--notebooks NAME]`.

The first code cell of an edition holds this package and its data, so that uploading the one file is
enough. Outputs are left out, and what is folded in JupyterLab is folded in Colab. If pyproject.toml
names the repository that hosts the editions, they link to each other there and carry a badge.
"""

import argparse
import base64
import io
import re
import zipfile
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from contents import with_line
from notebooks import ROOT, SHEET, Notebook, is_folded, read_notebooks, relinked, repository

UNPACK = '''\
# @title Run this cell first: the course's helpers and data, packed {{ display-mode: "form" }}
# @markdown It holds the packages `course_utils` and `gradaudit` and their data, as a zip file. Run it to unpack them \
into a temporary folder, once for each kernel. Nothing is installed, nothing is downloaded.
import base64
import io
import sys
import tempfile
import zipfile

packed = """
{packed}
"""
if not any("gradient-accumulation-" in entry for entry in sys.path):
    sys.path.insert(0, tempfile.mkdtemp(prefix="gradient-accumulation-"))
    zipfile.ZipFile(io.BytesIO(base64.b64decode(packed))).extractall(sys.path[0])
folder = next(entry for entry in sys.path if "gradient-accumulation-" in entry)
print("Unpacked. To look into it, run this in a cell of its own: !ls -R", folder)
'''
UNPACK_FIRST = 'raise SystemExit("Run the folded cell above this one first: it holds course_utils.")'


def edition(book: Notebook, packed: str, hosted: str = "") -> NotebookNode:
    """A notebook that needs no other file.

    Args:
        book: The notebook of the course; it stays as it is.
        packed: What `pack` returns.
        hosted: The repository, `owner/name`, that holds the editions, or empty if none does.
    """

    def link(said: str, name: str) -> str:
        return f"[{said}]({address(name, hosted)})" if hosted else said

    sheet = SHEET.replace("(", f"(https://github.com/{hosted}/blob/HEAD/notebooks/") if hosted else "cheat sheet"
    made = with_line(book, UNPACK_FIRST)
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            if is_folded(cell, "source"):
                said = re.match(r"# ([^.\n]+)", cell.source)
                cell.source = f"# @title {said[1] if said else 'Run this cell'}\n{cell.source}"
        cell.source = relinked(cell.source, link).replace(SHEET, sheet)  # also in what a cell will reveal
    if hosted:
        badge = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
        made.cells[0].source = made.cells[0].source.replace("\n", f"\n\n{badge}({address(book.name, hosted)})\n", 1)
    first = next(index for index, cell in enumerate(made.cells) if cell.cell_type == "code")
    folded = {"cellView": "form", "jupyter": {"source_hidden": True}}
    made.cells.insert(first, nbformat.v4.new_code_cell(UNPACK.format(packed=packed), id="packed", metadata=folded))
    made.metadata["colab"] = {"provenance": []}
    return made


def address(name: str, hosted: str) -> str:
    """Where Colab opens an edition: the editions lie at the top of the branch `colab`."""
    return f"https://colab.research.google.com/github/{hosted}/blob/colab/{name}.ipynb"


def pack() -> str:
    """The packages and the data, zipped, in lines of letters; the same for the same files."""
    suffixes = {".py", ".html", ".json", ".toml", ".csv", ".gz", ".txt"}
    files = [path for name in ("course_utils", "gradaudit", "data") for path in (ROOT / name).rglob("*")]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(path for path in files if path.suffix in suffixes):
            name = re.sub("^data/", "course_utils/_data/", path.relative_to(ROOT).as_posix())  # as in the wheel
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED, compresslevel=9)
    code = base64.b64encode(buffer.getvalue()).decode()
    return "\n".join(code[start : start + 120] for start in range(0, len(code), 120))


def main() -> None:
    books = read_notebooks()
    parser = argparse.ArgumentParser(description="Writes editions of the notebooks for Colab.")
    parser.add_argument("--out", type=Path, default=Path("build/colab"), help="folder (default: build/colab)")
    parser.add_argument("--notebooks", nargs="+", choices=books, default=books, metavar="NAME", help="default: all")
    options = parser.parse_args()
    packed, hosted = pack(), repository()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.notebooks:
        nbformat.write(edition(books[name], packed, hosted), options.out / f"{name}.ipynb")
    print(f"{len(options.notebooks)} notebooks in {options.out}")


if __name__ == "__main__":
    main()
