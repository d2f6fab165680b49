"""Self-contained editions for Colab: `python -m course_utils.colab [--out build/colab] [--notebooks NAME ...]`.

Each edition is one notebook with this package and the data that it uses packed into its first code cell, so that
uploading the one file is enough: nothing is installed, nothing is downloaded. Outputs are left out, and what is folded
in JupyterLab is folded in Colab. If pyproject.toml names the repository that hosts the editions, they link to each
other there and carry a badge; otherwise they do neither.
"""

import argparse
import base64
import copy
import hashlib
import io
import json
import re
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_utils import data
from course_utils.publish import PublishError
from course_utils.publish.notebook import (
    Notebook,
    chosen,
    folder,
    is_folded,
    read_notebooks,
    relinked,
    tags,
)
from course_utils.publish.output import all_or_nothing

PACKAGE = Path(__file__).parents[1]
HOME = PACKAGE.parent
BRANCH = "colab"  # of the hosting repository: there the editions lie, at the top
_WORDS = r"\b(read_)?words\("
_ZOO = r"\bzoo\b|\bpublic_loop\("  # its loops train on all of the data
NEEDED = {  # a file or a folder of data is packed if the notebook's code, or a module that it uses, loads it
    "digits.csv.gz": rf"\bdigits\(|{_ZOO}",
    "words.txt.gz": rf"{_WORDS}|{_ZOO}",
    "words.LICENSE.txt": rf"{_WORDS}|{_ZOO}",
    "predictions/": r"\bpredict\(",
}
UNPACK = '''\
# @title Run this cell first: the course's helpers and data, packed {{ display-mode: "form" }}
# @markdown It holds a zip file: {holds}. Run it to unpack them into a temporary folder, once for each kernel. \
Nothing is installed, nothing is downloaded.
# @markdown
# @markdown It then says which folder, so that you can look into it. The zip file's sha256 is `{sha256}`.
import base64
import hashlib
import io
import sys
import tempfile
import zipfile

_sha256, _packed = "{sha256}", """
{packed}
"""
_zip, _name = base64.b64decode(_packed), f"course-{{_sha256[:12]}}-"
if hashlib.sha256(_zip).hexdigest() != _sha256:
    raise RuntimeError("This cell is not as it was packed. Get the notebook again.")
if not any(_name in _place for _place in sys.path):
    sys.path.insert(0, tempfile.mkdtemp(prefix=_name))
    zipfile.ZipFile(io.BytesIO(_zip)).extractall(sys.path[0])
_folder = next(_place for _place in sys.path if _name in _place)
print("Unpacked. To look into it, run this in a cell of its own: !ls -R", _folder)
'''
_MISSING = 'if importlib.util.find_spec("course_utils") is None:\n'
_SET_UP = re.compile(rf"{re.escape(_MISSING)}    .*\n")  # the lines of a set-up cell that look for the package
_PACKED = f'{_MISSING}    raise SystemExit("Run the folded cell above this one first: it holds course_utils.")\n'
_NOT_HERE = "Run `pip install -e .` in a clone of the course, or open its Colab edition: see the README."


def edition(notebook: Notebook, repository: str = "") -> NotebookNode:
    """A notebook that needs no other file.

    Args:
        notebook: The notebook of the course; it stays as it is.
        repository: `owner/name` on GitHub, or empty if none hosts the editions.
    """

    def link(said: str, name: str) -> str:
        return f"[{said}]({address(name, repository)})" if repository else said

    made = copy.deepcopy(notebook.node)
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = relinked(cell.source, link)
        else:
            _without_outputs(cell)
            cell.source = _SET_UP.sub(_PACKED, cell.source)
    if repository:
        title, rest = made.cells[0].source.split("\n", 1)
        badge = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
        made.cells[0].source = f"{title}\n\n{badge}({address(notebook.name, repository)})\n{rest}"
    code = "\n".join(cell.source for cell in made.cells if cell.cell_type == "code")
    first = next(place for place, cell in enumerate(made.cells) if cell.cell_type == "code")
    needed = [name for name, used in NEEDED.items() if re.search(used, code)]
    needed += [name for name in data.manifest() if name.startswith("measurements/") and name in code]
    made.cells.insert(first, _packed(_archive(needed)))
    made.metadata["colab"] = {"provenance": []}
    return made


def hosted(pyproject: Path) -> str:
    """The repository that hosts the editions, from `[tool.course]` in pyproject.toml; empty if none is named."""
    try:
        settings = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise PublishError(f"{pyproject} cannot be read: {problem}") from problem
    repository = settings.get("tool", {}).get("course", {}).get("repository", "")
    if repository and not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise PublishError(f'[tool.course] repository must be "owner/name" or "", got {repository!r}')
    return repository


def with_address(notebook: Notebook, repository: str) -> NotebookNode:
    """A notebook whose set-up cell installs the package from its repository where it is missing.

    Args:
        notebook: The notebook of the course; it stays as it is.
        repository: `owner/name` on GitHub; if it is empty, the cell says what to do instead.
    """
    install = f'get_ipython().run_line_magic("pip", "install -q git+https://github.com/{repository}")'
    line = install if repository else f'raise SystemExit("{_NOT_HERE}")'
    made = copy.deepcopy(notebook.node)
    first = next(cell for cell in made.cells if cell.cell_type == "code")
    first.source, found = _SET_UP.subn(lambda _: f"{_MISSING}    {line}\n", first.source)
    if found != 1:
        raise PublishError(f"{notebook.path}: the set-up cell must look for course_utils in one place")
    return made


def build(out: Path, names: Sequence[str] = (), repository: str = "") -> list[Path]:
    """Writes editions into a folder, all or none, and returns the files.

    Args:
        out: The folder.
        names: Of notebooks, such as "02_zeroing"; all by default.
        repository: `owner/name` on GitHub, or empty if none hosts the editions.

    Raises:
        PublishError: If there is no notebook of a name, or a file cannot be written.
    """
    notebooks = read_notebooks()
    names = chosen(notebooks, names)
    with all_or_nothing(out) as unfinished:
        for name in names:
            text = nbformat.writes(edition(notebooks[name], repository)) + "\n"
            (unfinished / f"{name}.ipynb").write_text(text, encoding="utf-8")
    return [out / f"{name}.ipynb" for name in names]


def _without_outputs(cell: NotebookNode) -> None:
    """A cell as it is before it runs; what JupyterLab folds becomes a folded form of Colab."""
    cell.outputs, cell.execution_count = [], None
    if is_folded(cell, "source"):
        cell.metadata["cellView"] = "form"
        kind = "The solution" if "solution" in tags(cell) else "Run this cell"
        cell.source = f"# @title {kind}\n{cell.source}"


def address(name: str, repository: str) -> str:
    return f"https://colab.research.google.com/github/{repository}/blob/{BRANCH}/{name}.ipynb"


def _archive(needed: Sequence[str]) -> bytes:
    """This package and what is needed of the data; the same bytes for the same content."""
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.glob("practice/**/*.html"), *HOME.glob("gradaudit/**/*.py")]
    content = {path.relative_to(HOME).as_posix(): path.read_bytes() for path in files}
    manifest = {name: entry for name, entry in data.manifest().items() if name.startswith(tuple(needed))}
    content["course_utils/_data/manifest.json"] = json.dumps(manifest).encode()
    content |= {f"course_utils/_data/{name}": data.read(name) for name in manifest}
    for tables in {"facts/", "predictions/"}.intersection(needed):
        found = (data.folder() / tables).glob("*.toml")
        content |= {f"course_utils/_data/{tables}{path.name}": path.read_bytes() for path in found}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(content):
            archive.writestr(zipfile.ZipInfo(name), content[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _packed(archive: bytes) -> NotebookNode:
    """The folded cell that unpacks an archive into a folder that is named by its checksum, and says so."""
    parts = [Path(name).parts for name in zipfile.ZipFile(io.BytesIO(archive)).namelist()]
    files = dict.fromkeys(of_data[2] for of_data in parts if of_data[1] == "_data")
    holds = f"the package `course_utils` and its data, {', '.join(f'`{file}`' for file in files)}"
    code = base64.b64encode(archive).decode()
    packed = "\n".join(code[start : start + 120] for start in range(0, len(code), 120))
    metadata = {"cellView": "form", "jupyter": {"source_hidden": True}}
    source = UNPACK.format(holds=holds, sha256=hashlib.sha256(archive).hexdigest(), packed=packed)
    return nbformat.v4.new_code_cell(source, id="packed", metadata=metadata)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.colab",
        description="Writes editions of the notebooks for Colab: one file each, with everything that it needs.",
    )
    parser.add_argument("--out", type=Path, default=Path("build/colab"), help="folder (default build/colab)")
    parser.add_argument("--notebooks", nargs="*", default=(), metavar="NAME", help="such as 02_zeroing (default all)")
    options = parser.parse_args(arguments)
    try:
        written = build(options.out, options.notebooks, hosted(folder().parent / "pyproject.toml"))
    except PublishError as problem:
        print(f"colab: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("colab: interrupted, nothing was written", file=sys.stderr)
        return 2
    for path in written:
        print(f"{path}  {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
