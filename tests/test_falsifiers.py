"""Every fact's cell fails when the fact is made false: what to break is in the column `falsifier` of claims.csv."""

import csv
import io
import linecache
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import nbformat
import pytest
import torch
from breakages import BREAKAGES

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def facts_of(notebook: str) -> dict[str, str]:
    with (ROOT / "data" / "claims.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row["falsifier"] for row in csv.DictReader(file) if row["notebook"] == notebook}


def claims_in(cell) -> list[str]:
    return [tag.removeprefix("claim:") for tag in cell.metadata.get("tags", []) if tag.startswith("claim:")]


def run(source: str, namespace: dict) -> None:
    file = f"<cell {hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # as in a kernel
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        exec(compile(source, file, "exec"), namespace)


def run_broken(source: str, namespace: dict, falsifier: str) -> AssertionError | None:
    """The assertion that fails when the cell runs with the falsifier at work; None if none does."""
    kind, _, detail = falsifier.partition(": ")
    try:
        if kind == "cell":
            old, arrow, new = detail.partition(" => ")
            if not arrow or old not in source:
                return None
            run(source.replace(old, new), namespace)
        else:
            with BREAKAGES[falsifier]():
                run(source, namespace)
    except AssertionError as error:
        return error
    except Exception:
        return None  # it breaks, but not because an assertion says what is false
    return None


@pytest.fixture
def as_in_a_kernel():
    where, dtype, random_state = os.getcwd(), torch.get_default_dtype(), torch.get_rng_state()
    os.chdir(ROOT / "notebooks")
    yield
    os.chdir(where)
    torch.set_default_dtype(dtype)
    torch.set_rng_state(random_state)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_each_facts_cell_fails_when_the_fact_is_false(path, as_in_a_kernel):
    facts, shown, failed = facts_of(path.stem), set(), set()
    namespace = {"__name__": "__main__"}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "code":
            continue
        before, random_state = dict(namespace), torch.get_rng_state()
        run(cell.source, namespace)
        after = torch.get_rng_state()
        for claim in claims_in(cell):
            shown.add(claim)
            torch.set_rng_state(random_state)
            if claim in facts and run_broken(cell.source, dict(before), facts[claim]) is not None:
                failed.add(claim)
        torch.set_rng_state(after)
    silent = {claim: facts[claim] for claim in shown & facts.keys() - failed}
    assert not silent, f"these cells do not fail when their fact is made false: {silent}"
    assert failed == set(facts), f"facts of {path.stem} without a cell: {set(facts) - shown}"


SEEN_BY = {  # which notebook fails when a helper of the package is broken
    "package: windows drops the tail": "03b_windows",
    "package: train_epoch does not weigh": "03b_windows",
    "package: train_epoch weighs by sequences in place of tokens": "03d_tokens",
    "package: train_epoch divides the tail by N": "03d_tokens",
    "package: train_epoch clips per micro-batch": "04_exactness",
    "package: train_epoch clips before it unscales": "05_mixed_precision",
    "package: train_epoch updates the scale per micro-batch": "05_mixed_precision",
    "package: train_epoch does not weigh under a scaler": "05_mixed_precision",
    "package: train_epoch ticks the schedule on a skipped step": "05_mixed_precision",
    "package: train_epoch ticks the schedule per micro-batch": "06_training_loop",
    "ranks: package: train_epoch synchronises no micro-batch": "07_distributed",
    "ranks: package: train_epoch synchronises every micro-batch": "07_distributed",
    "ranks: package: train_epoch enters no_sync after the forward": "07_distributed",
    "ranks: package: train_epoch divides by what its own rank holds": "07_distributed",
}


@pytest.mark.parametrize("name", [name for name in BREAKAGES if "package: " in name])
def test_a_broken_helper_makes_the_notebook_that_introduces_it_fail_and_name_it(name, as_in_a_kernel):
    cells = nbformat.read(ROOT / "notebooks" / f"{SEEN_BY[name]}.ipynb", as_version=4).cells
    whole = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    with BREAKAGES[name](), pytest.raises(AssertionError, match=f"{name.split('package: ')[1].split()[0]}.* must"):
        run(whole, {"__name__": "__main__"})
