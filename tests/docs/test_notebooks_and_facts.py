"""The reader of notebooks and of facts: what it finds, and that what is written for it is complete."""

import doctest
from importlib import import_module

import nbformat
import pytest
from nbformat import v4

import notebooks
from course import FACTS
from notebooks import COURSE, Notebook, claims, read_claims

TITLE = "# Zeroing: when\n\n**35 minutes · after [01](01_gradients.ipynb)**\n\n*Where does it belong?*\n\n"
TITLE += "**On the 90-minute path:** Why, Your turn. **Skip** Step 5 if you can.\n\nAfter this notebook"
VERDICTS = ("true", "true-if", "imprecise", "wrong", "outdated", "missing")


def shown(**content):
    return v4.new_output("display_data", data={"text/plain": "for people", COURSE: content})


@pytest.fixture
def book(tmp_path):
    folded = {"jupyter": {"source_hidden": True}}
    cells = [
        v4.new_markdown_cell(TITLE),
        v4.new_markdown_cell("## Why · it matters\n\nFour words [stand here](https://example.org/one/two)."),
        v4.new_code_cell("a = 1\n\nb = 2\n", metadata={"tags": ["claim:one", "claim:two"]}),
        v4.new_markdown_cell("## Step 1\n\n| a | b |\n| --- | --- |\n| 1 | <b>2</b> |\n\n<!-- nothing -->"),
        v4.new_code_cell("c", outputs=[shown(kind="prediction", question="Which?", options=["a", "b"])]),
        v4.new_markdown_cell("## Your turn\n\n**5 minutes.** Do it.\n\n**At home, 10 minutes.** Do more."),
        v4.new_code_cell("..."),
        v4.new_code_cell("# Solution\na = 3", metadata=folded),
        v4.new_code_cell("recall()", outputs=[shown(kind="cards", cards=[["Q?", "A."]]), shown(kind="score")]),
    ]
    nbformat.write(v4.new_notebook(cells=cells), tmp_path / "02_zeroing.ipynb")
    return Notebook(tmp_path / "02_zeroing.ipynb")


def test_the_title_cell_says_title_minutes_question_and_path(book):
    assert (book.name, book.label, book.title, book.minutes) == ("02_zeroing", "02", "Zeroing: when", 35)
    assert book.question == "Where does it belong?"
    assert book.sections == ["Why", "Step 1", "Your turn"]
    assert book.short == ["Why", "Your turn"]


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


def test_what_is_asked_and_answered_is_read_from_the_data_beside_the_text(book):
    assert book.predictions == [{"kind": "prediction", "question": "Which?", "options": ["a", "b"]}]
    assert book.cards == [("Q?", "A.")]
    assert claims(book.code[0]) == ["one", "two"]


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
