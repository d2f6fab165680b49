"""The reader of notebooks and facts: what it finds, and that nothing is missing for it."""

import doctest
from importlib import import_module

import nbformat
import pytest
from nbformat import v4

import notebooks
from course import FACTS
from notebooks import Notebook, read_claims

TITLE = "# Zeroing: when\n\n**35 minutes · after [01](01_gradients.ipynb)**\n\n*Where does it belong?*\n\n"
TITLE += "**On the 90-minute path:** Why, Your turn. **Skip** Step 5 if you can.\n\nAfter this notebook"
VERDICTS = ("true", "true-if", "imprecise", "wrong", "outdated", "missing")


def test_a_title_cell_that_lacks_something_is_an_error_that_says_what_it_must_hold(tmp_path):
    path = tmp_path / "x.ipynb"
    nbformat.write(v4.new_notebook(cells=[v4.new_markdown_cell("# Title\n\n**35 minutes**")]), path)
    with pytest.raises(ValueError, match=r"x.ipynb: the first cell must hold a title, a line .* and a \*question\*"):
        Notebook(path)


def test_a_notebook_that_was_saved_in_mid_run_is_an_error_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    for name, last in (("01_whole", 2), ("02_half", None)):
        cells = [v4.new_markdown_cell(TITLE), *(v4.new_code_cell("a", execution_count=count) for count in (1, last))]
        path = tmp_path / "notebooks" / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        nbformat.write(v4.new_notebook(cells=cells), path)
    with pytest.raises(ValueError, match=r"02_half.ipynb was saved before all of its cells had run"):
        notebooks.read_notebooks()
    path.unlink()
    assert [*notebooks.read_notebooks()] == ["01_whole"]


def test_every_fact_says_what_people_believe_and_what_it_rests_on():
    for fact in FACTS.values():
        assert fact.verdict in VERDICTS, fact.id
        assert fact.basis in ("executed", "recorded", "cited", "derived"), fact.id
        assert fact.basis == "executed" or "measured" not in fact.statement.lower(), fact.id
        assert fact.basis != "executed" or fact.falsifier, fact.id


def test_every_common_claim_is_answered_by_a_fact():
    found = read_claims()
    numbers = {"A": 86, "B": 83, "C": 25, "D": 25, "G": 33, "X": 18}  # how many claims each source makes
    assert [c["id"] for c in found] == [f"{s}-{n:02}" for s, many in numbers.items() for n in range(1, many + 1)]
    for claim in found:
        assert claim["fact"] in FACTS, claim
        assert claim["verdict"] in (*VERDICTS, "resolve"), claim


@pytest.mark.parametrize("module", ["notebooks", "editions", "cheatsheet"])
def test_the_examples_in_docstrings_are_true(module):
    results = doctest.testmod(import_module(module))
    assert results.failed == 0 < results.attempted
