"""How far some libraries' updates are from the large batch: `python tests/benchmarks/side_by_side.py [--write]`.

On one rank and on two. Needs `pip install -e ".[bench]"`; a library that is not installed is an error here. Runs the
cells of notebooks/deeper/frameworks.ipynb up to its exercises, so what is measured is what learners copy. `--write`
keeps the rows, which notebook, README and the site's page show.
"""

import argparse
import hashlib
import json
import logging
import sys
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

from course_utils.data import folder, read
from course_utils.ranks.side_by_side import PACKAGES, SideBySide

ROOT = Path(__file__).parents[2]
OUT = folder() / "measurements" / "side_by_side.json"


def of_the_notebook() -> SideBySide:
    """Runs the notebook's cells up to the exercises; its tables are printed as there, its assertions hold as there."""
    cells = json.loads((ROOT / "notebooks" / "deeper" / "frameworks.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict = {"__name__": "__main__"}
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and source.startswith("## Your turn"):
            break
        if cell["cell_type"] == "code":
            exec(compile(source, "frameworks.ipynb", "exec"), names)
            names["predict"] = lambda *_: SimpleNamespace(reveal=lambda *_: None)
    return names["beside"]


def as_record(beside: SideBySide) -> dict:
    """The versions and the rows."""
    return {"versions": {name: version(name) for name in PACKAGES}, "rows": beside.rows}


def keep(path: Path, title: str, found: dict, origin: str = "") -> None:
    """Writes a record of the course, and what the manifest says of it."""
    content = (json.dumps(found, allow_nan=False).replace("}, {", "},\n{") + "\n").encode()
    path.write_bytes(content)
    said = json.loads(read("manifest.json"))
    said[f"measurements/{path.name}"] = {
        "title": title,
        "origin": origin or f"measured for this course on {found.get('machine', 'CPU')}, {found['date']}",
        "licence": "CC BY 4.0",
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    (folder() / "manifest.json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


def asked_to_write(description: str, out: Path) -> bool:
    """Reads the options; a library that isn't installed is an error."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--write", action="store_true", help=f"keep what is found in data/measurements/{out.name}")
    write = parser.parse_args().write
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        sys.exit(f'not installed: {", ".join(missing)}. Run pip install -e ".[bench]" first.')
    logging.disable(logging.WARNING)
    return write


def main() -> None:
    write = asked_to_write(__doc__.splitlines()[0], OUT)
    SideBySide.runs = lambda beside, package: True
    beside = of_the_notebook()
    print(*beside.versions(), sep="\n")
    if write:
        found = {"date": str(date.today()), "n": beside.n} | as_record(beside)
        title = "Windows and errors of the gradients of Accelerate, Lightning and transformers: "
        keep(OUT, title + "what tests/benchmarks/side_by_side.py has written", found)


if __name__ == "__main__":
    main()
