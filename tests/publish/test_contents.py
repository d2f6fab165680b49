"""The tables of contents: up to date, generated from the title cells, and nothing but they is changed."""

import re
import shutil

import nbformat
import pytest

from course_utils.publish import contents, notebook
from course_utils.publish.contents import main, outdated


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A copy of the notebooks and the README, which a test may change."""
    shutil.copytree(notebook.folder(), tmp_path / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    shutil.copy(notebook.folder().parent / "README.md", tmp_path)
    for module in (contents, notebook):
        monkeypatch.setattr(module, "folder", lambda: tmp_path / "notebooks")
    return tmp_path


def test_the_tables_of_the_readme_and_of_the_first_notebook_are_up_to_date():
    assert not outdated(), "run: python -m course_utils.publish.contents"


def test_a_changed_title_cell_changes_its_row_in_both_and_nothing_else(course, capsys):
    path = course / "notebooks" / "02_zeroing.ipynb"
    book = nbformat.read(path, as_version=4)
    book.cells[0].source = re.sub(r"\*\*\d+ minutes", "**77 minutes", book.cells[0].source)
    book.cells[0].source = re.sub(
        r"^\*[^*\n]+\*$", r"*What is \\1 in `zero_grad()`?*", book.cells[0].source, flags=re.M
    )
    nbformat.write(book, path)
    files = (course / "README.md", course / "notebooks" / "00_start.ipynb")
    before = [file.read_text(encoding="utf-8").splitlines() for file in files]

    assert main(["--check"]) == 1
    assert capsys.readouterr().out == "README.md is out of date\n00_start.ipynb is out of date\n"
    assert [file.read_text(encoding="utf-8").splitlines() for file in files] == before
    assert main([]) == 0
    assert main(["--check"]) == 0
    for file, old in zip(files, before, strict=True):
        new = file.read_text(encoding="utf-8").splitlines()
        (changed,) = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
        assert "What is " in changed[1]
        assert "| 77 |" in changed[1]
    assert "| What is \\1 in `zero_grad()`? | 77 |" in files[0].read_text(encoding="utf-8")


def test_a_new_notebook_gets_its_rows(course):
    shutil.copy(course / "notebooks" / "09_capstone.ipynb", course / "notebooks" / "10_more.ipynb")
    assert main([]) == 0
    assert "[`10_more`](notebooks/10_more.ipynb)" in (course / "README.md").read_text(encoding="utf-8")
    assert "[10_more](10_more.ipynb)" in (course / "notebooks" / "00_start.ipynb").read_text(encoding="utf-8")


def test_without_a_place_for_the_table_nothing_is_written(course, capsys):
    readme = course / "README.md"
    readme.write_text(readme.read_text(encoding="utf-8").replace(contents.END, ""), encoding="utf-8")
    assert main([]) == 2
    assert "README.md must hold one pair of <!-- contents -->" in capsys.readouterr().err
