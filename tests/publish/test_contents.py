"""The tables of contents and the paths: up to date, generated from the title cells, and nothing but they is changed."""

import re
import shutil
from math import ceil

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
    book, minutes = nbformat.read(path, as_version=4), notebook.Notebook(path).minutes
    book.cells[0].source = re.sub(r"\*\*\d+ minutes", "**77 minutes", book.cells[0].source)
    book.cells[0].source = re.sub(
        r"^\*[^*\n]+\*$", r"*What is \\1 in `zero_grad()`?*", book.cells[0].source, count=1, flags=re.M
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
        (changed,) = [(a, b) for a, b in zip(old, new, strict=True) if a != b and "hours" not in b]
        if file.suffix == ".md":  # the minutes of its group
            was, now = (int(re.match(r"- \*\*Basics\*\*, (\d+) minutes", line)[1]) for line in changed)
            assert now - was == 77 - minutes
        else:
            assert "| What is \\\\1 in `zero_grad()`? | 77 |" in changed[1]


def test_a_new_notebook_gets_its_rows(course):
    shutil.copy(course / "notebooks" / "12_project.ipynb", course / "notebooks" / "10_more.ipynb")
    assert main([]) == 0
    assert "[`10`](notebooks/10_more.ipynb)" in (course / "README.md").read_text(encoding="utf-8")
    assert "[10_more](10_more.ipynb)" in (course / "notebooks" / "00_start.ipynb").read_text(encoding="utf-8")


def test_the_paths_stand_below_the_table_with_their_time(course):
    path = course / "notebooks" / "02_zeroing.ipynb"
    book = nbformat.read(path, as_version=4)
    kept = [line for line in book.cells[0].source.split("\n\n") if not line.startswith("**Paths:**")]
    book.cells[0].source = "\n\n".join([*kept[:3], "**Paths:** 90 minutes (Why, Step 1) · everything.", *kept[3:]])
    nbformat.write(book, path)
    assert main([]) == 0
    assert nbformat.read(path, as_version=4).cells[0].source.count(notebook.WITHOUT_A_KERNEL) == 1
    for file, link in (("README.md", "[`02`](notebooks/02_zeroing.ipynb)"), ("notebooks/00_start.ipynb", "")):
        paths = (
            (course / file).read_text(encoding="utf-8").partition("| path | time without breaks | what to read |")[2]
        )
        paths = paths.partition(contents.END)[0]
        short, day, everything = re.findall(r"\| (90 minutes|one day|everything) \| (.+?) \| (.+?) \|", paths)
        assert f" {link or '[02](02_zeroing.ipynb)'} · " in short[2]
        assert short[2].endswith(", of each the sections that its first cell names")
        assert "02_zeroing" not in day[2]
        assert re.fullmatch(r"\d+ minutes", short[1])
        assert re.fullmatch(r"about [\d.]+ hours", everything[1])
        assert everything[2] == "all notebooks, in this order"


def test_a_path_takes_what_its_sections_take_and_what_whole_notebooks_state(course):
    books = notebook.read_notebooks()
    whole = sum(book.minutes for book in books.values())
    assert contents.path_minutes(books.values(), "everything") == whole
    book = books["02_zeroing"]
    book.paths["90 minutes"] = ["Why"]
    why = contents.path_minutes([book], "90 minutes")
    assert why == ceil(contents.reading(book, ["Why"]).minutes)
    assert 1 <= why <= 10


def test_without_a_place_for_the_table_nothing_is_written(course, capsys):
    readme = course / "README.md"
    readme.write_text(readme.read_text(encoding="utf-8").replace(contents.END, ""), encoding="utf-8")
    assert main([]) == 2
    assert "README.md must hold one pair of <!-- contents -->" in capsys.readouterr().err
