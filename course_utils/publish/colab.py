"""Self-contained editions for Colab: `python -m course_utils.colab [--out build/colab] [--notebooks NAME ...]`.

Each edition is one notebook with this package and the data that it uses packed into its first code cell, so that
uploading the one file is enough: nothing is installed, nothing is downloaded. Outputs are left out, and what is folded
in JupyterLab is folded in Colab. If pyproject.toml names the repository that hosts the editions, they link to each
other there and carry a badge; else they do neither.
"""

import argparse
import base64
import hashlib
import io
import json
import re
import sys
import textwrap
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

from course_utils import data

PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parent
BRANCH = "colab"  # of the hosting repository: there the editions lie, at the top
NEEDED = {  # a data file is packed if the notebook's code, or a module that it uses, loads it
    "digits.csv.gz": r"\bdigits\(|\bzoo\b",
    "words.txt.gz": r"\bwords\(|\bzoo\b",
    "words.LICENSE.txt": r"\bwords\(|\bzoo\b",
    "claims.csv": r"\bfinal_test\b",
    "cards.json": r"\bfinal_test\b",
    "measurements/": r"\bmeasurements/",  # all files of the folder
}
UNPACK = '''\
# @title The course's helpers and data, packed {{ display-mode: "form" }}
# Unpacked into a temporary folder, once for each kernel. Nothing is installed, nothing is downloaded.
import base64
import io
import sys
import tempfile
import zipfile

_folder, _packed = "{folder}", """
{packed}
"""
if not any(_folder in _place for _place in sys.path):
    sys.path.insert(0, tempfile.mkdtemp(prefix=_folder))
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(_packed))) as _archive:
        _archive.extractall(sys.path[0])
'''


def edition(notebook: dict, name: str, repository: str = "") -> dict:
    """The edition of a notebook.

    **Arguments:** `notebook`: as read from its JSON; `name`: of its file, without the ending; `repository`:
    `owner/name` on GitHub, or empty if none hosts the editions.
    """
    cells = [_cell(cell) for cell in notebook["cells"] if "instructor" not in cell["metadata"].get("tags", [])]
    for cell in cells:
        if cell["cell_type"] == "markdown":
            cell["source"] = _links("".join(cell["source"]), repository)
    if repository:
        title, rest = cells[0]["source"].split("\n", 1)
        cells[0]["source"] = f"{title}\n\n{badge(name, repository)}\n{rest}"
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    first = next(place for place, cell in enumerate(cells) if cell["cell_type"] == "code")
    cells.insert(first, _packed(_archive([file for file, used in NEEDED.items() if re.search(used, code)])))
    metadata = {"colab": {"provenance": []}, **notebook["metadata"]}
    return {**notebook, "cells": cells, "metadata": metadata}


def badge(name: str, repository: str) -> str:
    """A picture that opens an edition in Colab, in Markdown.

    >>> badge("02_zeroing", "somebody/course").split("](")[-1]
    'https://colab.research.google.com/github/somebody/course/blob/colab/02_zeroing.ipynb)'
    """
    picture = "https://colab.research.google.com/assets/colab-badge.svg"
    return f"[![Open in Colab]({picture})]({_address(name, repository)})"


def hosted(pyproject: Path) -> str:
    """The repository that hosts the editions, from `[tool.course]` in pyproject.toml; empty if none is named.

    **Raises:** `ValueError` if what stands there is not `owner/name`.
    """
    settings = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    repository = settings.get("tool", {}).get("course", {}).get("repository", "")
    if repository and not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise ValueError(f'[tool.course] repository must be "owner/name" or "", got {repository!r}')
    return repository


def build(out: Path, names: Sequence[str] = (), repository: str = "") -> list[Path]:
    """Writes the editions of the named notebooks, or of all, into a folder, and returns their paths.

    **Raises:** `FileNotFoundError` for a notebook that is not there, before anything is written.
    """
    found = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
    missing = [name for name in names if name not in found]
    if missing or not found:
        raise FileNotFoundError(f"no such notebook in {ROOT / 'notebooks'}: {', '.join(missing) or '*.ipynb'}")
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name in names or found:
        notebook = edition(json.loads(found[name].read_text(encoding="utf-8")), name, repository)
        written.append(out / f"{name}.ipynb")
        written[-1].write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return written


def _cell(cell: dict) -> dict:
    """A cell without its outputs; what JupyterLab folds becomes a folded form of Colab."""
    cell = {**cell, "metadata": {**cell["metadata"]}}
    if cell["cell_type"] == "code":
        cell |= {"outputs": [], "execution_count": None}
        if cell["metadata"].get("jupyter", {}).get("source_hidden"):
            cell["metadata"]["cellView"] = "form"
            kind = "The solution" if "solution" in cell["metadata"].get("tags", []) else "Run this cell"
            cell["source"] = f"# @title {kind}\n" + "".join(cell["source"])
    return cell


def _links(text: str, repository: str) -> str:
    """Links to other notebooks lead to their editions, or are plain text where no repository hosts them."""

    def link(found: re.Match) -> str:
        return f"[{found[1]}]({_address(found[2], repository)})" if repository else found[1]

    return re.sub(r"\[([^\]]+)\]\((\w+)\.ipynb(?:#[^)]*)?\)", link, text)


def _address(name: str, repository: str) -> str:
    return f"https://colab.research.google.com/github/{repository}/blob/{BRANCH}/{name}.ipynb"


def _archive(files: Sequence[str]) -> bytes:
    """This package and some files or folders of its data; the same bytes for the same content."""
    content = {
        f"course_utils/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes() for path in PACKAGE.rglob("*.py")
    }
    manifest = {name: entry for name, entry in data.manifest().items() if name.startswith(tuple(files))}
    content["course_utils/_data/manifest.json"] = json.dumps(manifest).encode()
    content |= {f"course_utils/_data/{name}": data.read(name) for name in manifest}
    if "cards.json" in files:
        from course_utils.practice.final import read_cards

        content["course_utils/_data/cards.json"] = json.dumps(read_cards()).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(content):
            archive.writestr(zipfile.ZipInfo(name), content[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _packed(archive: bytes) -> dict:
    """The folded cell that unpacks an archive into a folder that is named by its checksum."""
    folder = f"course-{hashlib.sha256(archive).hexdigest()[:12]}-"
    packed = "\n".join(textwrap.wrap(base64.b64encode(archive).decode(), 120))
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": "packed",
        "metadata": {"cellView": "form", "jupyter": {"source_hidden": True}},
        "outputs": [],
        "source": UNPACK.format(folder=folder, packed=packed),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.colab",
        description="Writes editions of the notebooks for Colab: one file each, with all that it needs inside.",
    )
    parser.add_argument("--out", type=Path, default=Path("build/colab"), help="folder (default build/colab)")
    parser.add_argument("--notebooks", nargs="*", default=(), metavar="NAME", help="such as 02_zeroing (default all)")
    options = parser.parse_args(arguments)
    try:
        written = build(options.out, options.notebooks, hosted(ROOT / "pyproject.toml"))
    except (FileNotFoundError, ValueError) as error:
        print(f"colab: {error}", file=sys.stderr)
        return 2
    for path in written:
        print(f"{path}  {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
