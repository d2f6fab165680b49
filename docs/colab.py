"""Editions of the notebooks for Colab: `python docs/colab.py [--out DIR] [--notebooks NAME]`.

The first code cell of an edition holds this package and its data, so that uploading the one file is
enough. Outputs are left out, and what is folded in JupyterLab is folded in Colab. If pyproject.toml
names the repository that hosts the editions, they link to each other there and carry a badge.
"""

import argparse
import base64
import gzip
import io
import json
import lzma
import re
import tarfile
from hashlib import sha256
from itertools import pairwise
from os.path import commonprefix
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from contents import with_line
from course_utils import words
from notebooks import ROOT, SHEET, Notebook, is_folded, read_notebooks, relinked, repository

UNPACK = """\
# @title Run this cell first: the course's helpers and data, packed {{ display-mode: "form" }}
# @markdown Its last line holds the packages `course_utils` and `gradaudit` and their data, as an archive. Run it to \
unpack them into a temporary folder, once for each kernel. Nothing is installed, nothing is downloaded.
import base64
import gzip
import io
import pathlib
import re
import sys
import tarfile
import tempfile


def unpack(packed):
    if any("gradient-accumulation-" in entry for entry in sys.path):
        return
    sys.path.insert(0, tempfile.mkdtemp(prefix="gradient-accumulation-"))
    with tarfile.open(fileobj=io.BytesIO(base64.b85decode(packed))) as archive:
        archive.extractall(sys.path[0], filter="data")
    data, word, words = pathlib.Path(sys.path[0], "course_utils", "_data"), "", []
    for shared, rest in re.findall("([A-Z])([a-z]+)", (data / "words").read_text()):
        word = word[: ord(shared) - ord("A")] + rest
        words.append(word)
    (data / "words.txt.gz").write_bytes(gzip.compress("\\n".join(words).encode()))
    print("Unpacked. To look into it, run this in a cell of its own: !ls -R", sys.path[0])


unpack("{packed}")
"""
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
    """The packages and the data that notebooks read, as text; the same for the same files."""
    files = [path for name in ("course_utils", "gradaudit") for path in (ROOT / name).rglob("*")]
    contents = {path.relative_to(ROOT): path.read_bytes() for path in files if path.suffix in (".py", ".html")}
    contents |= {Path("course_utils/_data") / name: content for name, content in data().items()}  # as in the wheel
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9 | lzma.PRESET_EXTREME) as archive:
        for path, content in sorted(contents.items()):
            entry = tarfile.TarInfo(path.as_posix())
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return base64.b85encode(buffer.getvalue()).decode()


def data() -> dict[str, bytes]:
    """The data files by name, without those that no notebook reads. Here they are smaller together.

    Of the words that `words` takes, each begins with a capital letter for how many letters it
    shares with the one before: "A" for none.
    """
    folder = ROOT / "data"
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.glob("predictions/*.toml")}
    described = json.loads((folder / "manifest.json").read_bytes())
    described = {name: about for name, about in described.items() if not name.endswith((".csv", "words.txt.gz"))}
    for name, about in described.items():
        content = (folder / name).read_bytes()
        if name.endswith(".gz"):
            content = gzip.compress(gzip.decompress(content), compresslevel=0, mtime=0)
        found[name], about["sha256"] = content, sha256(content).hexdigest()
    pairs = pairwise(["", *words()])
    found["words"] = "".join(chr(65 + len(p := commonprefix(pair))) + pair[1][len(p) :] for pair in pairs).encode()  # noqa: RUF071
    return found | {"manifest.json": json.dumps(described).encode()}


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
