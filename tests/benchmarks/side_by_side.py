"""How far some libraries' updates are from the large batch: `python tests/benchmarks/side_by_side.py [--write]`.

On one rank and on two. Needs `pip install -e ".[bench]"`; a library that is not installed is an error here. Runs the
cells of notebooks/deeper/frameworks.ipynb up to its exercises, so what is measured is what learners copy, then audits
each loop and repeats the plain forms at fixed batch sizes. `--write` keeps the rows, which notebook and README show.
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
from random import Random
from types import SimpleNamespace

import torch
from torch.utils.data import DataLoader

from course_utils import train_epoch, words
from course_utils.data import folder, read
from course_utils.ranks.side_by_side import PACKAGES, SideBySide, undisturbed
from gradaudit import audit

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


def findings(beside: SideBySide, loop) -> list[tuple[str, str]]:
    """What the auditor finds in one epoch of a loop on one rank, told that the window is N: (level, rule)."""
    half = beside.pieces[: len(beside.pieces) // 2]
    loader = DataLoader([beside.collate(list(piece)) for piece in half], batch_size=1, collate_fn=lambda some: some[0])
    with undisturbed(), audit(window=beside.n) as report:
        loop(beside.new_model(), loader)
    return [(finding.level, finding.rule) for finding in report.findings]


def at_a_fixed_batch_size(beside: SideBySide, size: int) -> dict[str, float]:
    """The largest error of each plain form in 7 windows of micro-batches of `size` words."""

    def by_samples(model, loader):
        train_epoch(model, loader, beside.loss_fn, torch.optim.SGD(model.parameters(), lr=0.0), n=beside.n)

    chosen = Random(0).sample(words(), 7 * beside.n * size)
    pieces = [chosen[k : k + size] for k in range(0, len(chosen), size)]
    plain = {"Accelerate": "guide", "transformers Trainer": "own model its mean", "Lightning Trainer": "guide"}
    loops = {"train_epoch": by_samples} | {name: beside.loops[name, form] for name, form in plain.items()}
    return {name: beside.updates(loop, pieces=pieces).full for name, loop in loops.items()}


def as_record(beside: SideBySide) -> dict:
    """The versions and the rows, those of one rank and those of two."""
    one, two = ([row for row in beside.rows if row["ranks"] == ranks] for ranks in (1, 2))
    return {"versions": {name: version(name) for name in PACKAGES}, "rows": one, "two_ranks": two}


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
    print("\nThe auditor, one rank:")
    for row in beside.rows:
        if row["ranks"] == 1:
            row["findings"] = findings(beside, beside.loops[row["library"], row["form"]])
            said = ", ".join(f"{level} {rule}" for level, rule in row["findings"]) or "nothing"
            row["loop"] = f"{row['library']}, {row['form']}"
            print(f"  {row['loop']}: {said}")
    fixed = {size: at_a_fixed_batch_size(beside, size) for size in (4, 16)}
    for size, errors in fixed.items():
        print(f"{size} words each:", ", ".join(f"{name} {error:.1%}" for name, error in errors.items()))
    print(*beside.versions(), sep="\n")
    if write:
        found = {"date": str(date.today()), "n": beside.n, "fixed_batch_size": fixed} | as_record(beside)
        title = "Windows, errors of the gradients and audits of Accelerate, Lightning and transformers: "
        keep(OUT, title + "what tests/benchmarks/side_by_side.py has written", found)


if __name__ == "__main__":
    main()
