"""The table of contents and the paths: up to date, and generated from the notebooks' title cells."""

import re
import shutil

import nbformat
import pytest

from course_utils.publish import colab, contents, notebook
from course_utils.publish.contents import main, outdated, path_minutes
from course_utils.publish.reading import reading


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A copy of the notebooks and the README, which a test may change."""
    shutil.copytree(notebook.folder(), tmp_path / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    for file in ("README.md", "pyproject.toml"):
        shutil.copy(notebook.folder().parent / file, tmp_path)
    for module in (colab, contents, notebook):
        monkeypatch.setattr(module, "folder", lambda: tmp_path / "notebooks")
    return tmp_path


def test_readme_and_set_up_cells_are_up_to_date():
    assert not outdated(), "run: python -m course_utils.publish.contents"


def test_the_repositorys_address_goes_from_pyproject_into_every_set_up_cell(course):
    pyproject = course / "pyproject.toml"
    named = pyproject.read_text(encoding="utf-8").replace('repository = ""', 'repository = "somebody/course"')
    pyproject.write_text(named, encoding="utf-8")
    assert main([]) == 0
    for book in notebook.read_notebooks().values():
        assert '"install -q git+https://github.com/somebody/course"' in book.code[0].source
        assert "SystemExit" not in book.code[0].source
    assert main(["--check"]) == 0


def test_a_set_up_cell_without_a_package_says_what_to_do(course, monkeypatch):
    source = notebook.Notebook(course / "notebooks" / "02_zeroing.ipynb").code[0].source
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install -e"):
        exec(source, {})


def test_a_section_that_is_taken_from_a_path_leaves_the_readme(course, capsys):
    path = course / "notebooks" / "02_zeroing.ipynb"
    book = nbformat.read(path, as_version=4)
    line = "**On the 90-minute path:** Why."
    book.cells[0].source = re.sub(r"^\*\*On the 90-minute path.*$", line, book.cells[0].source, flags=re.M)
    nbformat.write(book, path)
    before = (course / "README.md").read_text(encoding="utf-8")
    assert main(["--check"]) == 1
    assert (course / "README.md").read_text(encoding="utf-8") == before
    assert main([]) == 0
    assert capsys.readouterr().out == "README.md is out of date\nREADME.md updated\n"
    assert main(["--check"]) == 0
    now = (course / "README.md").read_text(encoding="utf-8")
    assert " · [02](notebooks/02_zeroing.ipynb): Why · " in now
    changed = [a for a, b in zip(now.splitlines(), before.splitlines(), strict=True) if a != b]
    assert [line.partition(" | ")[0] for line in changed] == ["| 90 minutes"]


def test_a_path_takes_what_its_sections_take():
    books = notebook.read_notebooks()
    assert path_minutes(books, "everything") == sum(book.minutes for book in books.values())
    assert path_minutes(books, "one day") == sum(
        book.minutes for name, book in books.items() if name[0].isdigit() and name != "12_project"
    )
    sections = [(book, book.on_path("90 minutes")) for book in books.values()]
    short = sum(reading(book, named).minutes for book, named in sections if named)
    assert short <= path_minutes(books, "90 minutes") < short + 1


def test_without_a_place_for_the_table_nothing_is_written(course, capsys):
    path = course / "README.md"
    path.write_text(path.read_text(encoding="utf-8").replace(contents.END, ""), encoding="utf-8")
    assert main([]) == 2
    assert "README.md must hold one pair of <!-- contents -->" in capsys.readouterr().err
