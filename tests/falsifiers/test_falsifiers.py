"""Every fact's cell fails when the fact is made false: what to break is in the column `falsifier` of claims.csv."""

import csv
from pathlib import Path

import nbformat
import pytest
import torch
from breakages import BREAKAGES
from cells import run

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def facts_of(notebook: str) -> dict[str, str]:
    with (ROOT / "data" / "claims.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row["falsifier"] for row in csv.DictReader(file) if row["notebook"] == notebook}


def claims_in(cell) -> list[str]:
    return [tag.removeprefix("claim:") for tag in cell.metadata.get("tags", []) if tag.startswith("claim:")]


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
