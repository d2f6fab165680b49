"""The reader of notebooks: what it finds, where it looks, and what it says of a file that is no notebook."""

import json

import nbformat
import pytest
from course_utils.publish import PublishError, notebook
from course_utils.publish.notebook import PATHS, Notebook, chosen, folder, read_notebooks
from nbformat import v4

from course_utils.practice.display import COURSE

TITLE = "# Zeroing: when\n\n**35 minutes · after [01](01_gradients.ipynb)**\n\n*Where does it belong?*\n\nMore."


def display(**content):
    return v4.new_output("display_data", data={"text/plain": "for people", COURSE: content})


def written(path, *cells, title=TITLE):
    nbformat.write(v4.new_notebook(cells=[v4.new_markdown_cell(title), *cells]), path)
    return path


@pytest.fixture
def book(tmp_path):
    ask = display(kind="prediction", question="Which?", options=["a", "b"])
    judged = display(kind="verdict", exercise="train", passed=False, bug="not-attempted", message="Nothing yet.")
    return Notebook(
        written(
            tmp_path / "02_zeroing.ipynb",
            v4.new_markdown_cell("## Why · one real bug\n\n## Predict"),
            v4.new_code_cell("guess = predict(...)", outputs=[ask], metadata={"tags": ["claim:one", "claim:two"]}),
            v4.new_code_cell("check(...)", outputs=[judged, judged]),
            v4.new_code_cell(
                "recall(...)",
                outputs=[display(kind="cards", cards=[["Q?", "A."]]), display(kind="score")],
                metadata={"jupyter": {"source_hidden": True}},
            ),
        )
    )


def test_the_title_cell_says_title_minutes_and_question(book):
    assert (book.name, book.title, book.minutes) == ("02_zeroing", "Zeroing: when", 35)
    assert book.question == "Where does it belong?"


def test_headings_and_the_notes_of_the_instructor(book, tmp_path, monkeypatch):
    assert book.headings == ["Why", "Predict"]
    monkeypatch.setattr(notebook, "folder", lambda: tmp_path / "notebooks")
    assert book.instructor == ""
    (tmp_path / "docs" / "instructor").mkdir(parents=True)
    (tmp_path / "docs" / "instructor" / "02_zeroing.md").write_text("**Ask**\n")
    assert book.instructor == "**Ask**"


@pytest.mark.parametrize(
    ("name", "line", "short", "day"),
    [
        ("02_zeroing", "**On the 90-minute path:** Why. **Skip** Step 5 if you can.", ["Why"], ["Why", "Predict"]),
        ("04_accumulation", "", [], ["Why", "Predict"]),
        ("12_project", "", [], []),
        ("hooks", "", [], []),
    ],
)
def test_the_paths_that_lead_through_a_notebook(tmp_path, name, line, short, day):
    cell = v4.new_markdown_cell("## Why · one real bug\n\n## Predict")
    book = Notebook(written(tmp_path / f"{name}.ipynb", cell, title=f"{TITLE}\n\n{line}\n\nAfter this notebook"))
    assert [book.on_path(path) for path in PATHS] == [short, day, ["Why", "Predict"]]


def test_a_section_that_there_is_not_is_an_error_that_names_it(tmp_path):
    title = f"{TITLE}\n\n**On the 90-minute path:** Why, Step 7."
    book = Notebook(written(tmp_path / "x.ipynb", v4.new_markdown_cell("## Why"), title=title))
    with pytest.raises(PublishError, match=r"x.ipynb: the 90-minute path names Step 7, which it doesn't have"):
        book.on_path("90 minutes")


def test_what_is_asked_and_answered_is_read_from_the_data_beside_the_text(book):
    assert book.predictions == [{"kind": "prediction", "question": "Which?", "options": ["a", "b"]}]
    assert book.exercises == ["train"]
    assert book.cards == [("Q?", "A.")]
    assert book.displays("final-test") == []


@pytest.mark.parametrize(
    "title",
    ["", "No heading", "# Title\n\n**35 minutes**", "# Title\n\n*Why?*", "# Title\n\n**minutes**\n\n*Why?*"],
    ids=["empty", "no heading", "no question", "no minutes", "no number"],
)
def test_a_title_cell_that_lacks_something_is_an_error_that_says_what_it_must_hold(tmp_path, title):
    path = written(tmp_path / "x.ipynb", title=title)
    with pytest.raises(PublishError, match=r"x.ipynb: the first cell must hold a title, a line .* and a question"):
        Notebook(path)


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", json.dumps({"cells": 1})])
def test_a_file_that_is_no_notebook_is_one_error_that_names_it(tmp_path, content):
    if content is not None:
        (tmp_path / "x.ipynb").write_text(content)
    with pytest.raises(PublishError, match=r"x\.ipynb"):
        Notebook(tmp_path / "x.ipynb")


def test_the_notebooks_are_those_beside_the_package_wherever_a_command_runs(tmp_path, monkeypatch):
    before = read_notebooks()
    (tmp_path / "notebooks").mkdir()
    written(tmp_path / "notebooks" / "x.ipynb")
    monkeypatch.chdir(tmp_path)
    assert list(read_notebooks()) == list(before)


def test_without_notebooks_beside_the_package_they_are_looked_for_here(tmp_path, monkeypatch):
    monkeypatch.setattr(notebook, "__file__", str(tmp_path / "site" / "course_utils" / "publish" / "notebook.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PublishError, match=f"there are no notebooks in {tmp_path / 'notebooks'}"):
        read_notebooks()
    (tmp_path / "notebooks").mkdir()
    written(tmp_path / "notebooks" / "x.ipynb")
    assert folder() == tmp_path / "notebooks"
    assert list(read_notebooks()) == ["x"]


def test_names_choose_notebooks_each_once_and_an_unknown_one_is_an_error():
    notebooks = dict.fromkeys(("00_start", "01_gradients"))
    assert chosen(notebooks, []) == ["00_start", "01_gradients"]
    assert chosen(notebooks, ["01_gradients", "01_gradients"]) == ["01_gradients"]
    with pytest.raises(PublishError, match="there is no notebook 'zeroing', only 00_start, 01_gradients"):
        chosen(notebooks, ["zeroing"])
