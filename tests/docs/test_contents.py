"""What stands in several files: the list of paths, and the address in the set-up cells."""

import contents
from course import NOTEBOOKS


def test_readme_and_set_up_cells_are_up_to_date():
    for path, text in contents.contents().items():
        assert path.read_text(encoding="utf-8") == text, "run: python docs/contents.py"


def test_the_repositorys_address_goes_from_pyproject_into_every_set_up_cell(monkeypatch):
    monkeypatch.setattr(contents, "repository", lambda: "somebody/course")
    found = contents.contents()
    for book in NOTEBOOKS.values():
        assert "install -q git+https://github.com/somebody/course" in found[book.path]
        assert contents.NOT_HERE not in found[book.path]


def test_the_paths_lead_to_every_notebook_and_every_topic_has_its_group():
    short, day, *deeper = contents.paths(NOTEBOOKS).splitlines()
    for book in NOTEBOOKS.values():
        path = book.path.relative_to(contents.ROOT).as_posix()
        assert [f"({path})" in line for line in (short, day, *deeper)].count(True) == 1, f"{path}: see TOPICS"
        assert (f"({path})" in short) == bool(book.short)
