"""Every fact's cell fails when the fact is made false, as its `falsifier` in data/facts says."""

import pytest
import torch

from breakages import BREAKAGES
from cells import run
from notebooks import claims, read_facts, read_notebooks

NOTEBOOKS = read_notebooks()


def run_broken(source: str, namespace: dict, falsifier: dict[str, str]) -> AssertionError | None:
    """The assertion that fails when the cell runs with the falsifier at work; None if none does."""
    try:
        match falsifier:
            case {"old": old, "new": new}:
                if old not in source:
                    return None
                run(source.replace(old, new), namespace)
            case {"breakage": name}:
                with BREAKAGES[name]():
                    run(source, namespace)
    except AssertionError as error:
        return error
    except Exception:
        return None  # it breaks, but not because an assertion says what is false
    return None


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_each_facts_cell_fails_when_the_fact_is_false(name, as_in_a_kernel):
    facts = {fact.id: fact.falsifier for fact in read_facts().values() if fact.notebook == name and fact.falsifier}
    shown, failed = set(), set()
    namespace = {"__name__": "__main__"}
    for cell in NOTEBOOKS[name].code:
        before, random_state = dict(namespace), torch.get_rng_state()
        run(cell.source, namespace)
        after = torch.get_rng_state()
        for claim in claims(cell):
            shown.add(claim)
            torch.set_rng_state(random_state)
            if claim in facts and run_broken(cell.source, dict(before), facts[claim]) is not None:
                failed.add(claim)
        torch.set_rng_state(after)
    silent = {claim: facts[claim] for claim in shown & facts.keys() - failed}
    assert not silent, f"these cells do not fail when their fact is made false: {silent}"
    assert failed == facts.keys(), f"facts of {name} without a cell: {facts.keys() - shown}"
