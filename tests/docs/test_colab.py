"""The editions for Colab: all that they need is in them, no link is dead, nothing is given away."""

import copy
import importlib.util
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import colab
from course import NOTEBOOKS
from notebooks import is_folded

packed = cache(colab.pack)
some_notebooks = pytest.mark.parametrize("name", ["00_start", "02_zeroing", "hooks"])


def edition(name, hosted=""):
    return colab.edition(NOTEBOOKS[name], packed(), hosted)


def prose(notebook) -> str:
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


@some_notebooks
def test_an_edition_is_small_folded_as_in_jupyterlab_has_no_outputs_and_installs_nothing(name):
    before = copy.deepcopy(NOTEBOOKS[name].node)
    made = edition(name)
    assert NOTEBOOKS[name].node == before
    assert len(json.dumps(made)) < 500_000
    assert all(len(cell.source.splitlines()) < 100 for cell in made.cells)
    for cell in made.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
            assert not re.search(r"^\s*[!%]|\bpip\b", cell.source, flags=re.M)
        if is_folded(cell, "source"):
            assert cell.metadata["cellView"] == "form"
            assert cell.source.startswith("# @title ")
    text = prose(made)  # without a repository there is no badge, and no link to a file
    assert "colab.research.google.com" not in text
    assert not re.findall(r"\]\((?!https?://|#)[^)]*\)", text)


@pytest.mark.parametrize("name", ["02_zeroing", "hooks"])
def test_with_a_repository_the_badge_and_the_links_lead_to_editions_in_it(name):
    made = edition(name, "somebody/course")
    text, at = prose(made), "https://colab.research.google.com/github/somebody/course/blob/colab/"
    badge = rf"# .+\n\n\[!\[Open in Colab\]\(\S+\.svg\)\]\({re.escape(at)}{name}\.ipynb\)\n\n\*\*\d\d minutes"
    assert re.match(badge, made.cells[0].source)
    assert not re.findall(r"\]\((?!https?://|#)[^)]*\)", text)
    assert set(re.findall(rf"{re.escape(at)}(\w+)\.ipynb", text)) <= NOTEBOOKS.keys()


def test_in_an_empty_folder_the_first_cells_bring_the_packages_and_their_data(tmp_path):
    first, set_up = [cell.source for cell in edition("02_zeroing").cells if cell.cell_type == "code"][:2]
    (tmp_path / "first.py").write_text(first, encoding="utf-8")
    (tmp_path / "set_up.py").write_text(set_up, encoding="utf-8")
    code = f"""
import json, sys, tempfile
tempfile.tempdir = {str(tmp_path)!r}
before = len(sys.path)
for cell in ("first.py", "first.py", "set_up.py", "first.py", "set_up.py"):  # running them again changes nothing
    exec(open(cell, encoding="utf-8").read(), globals())
assert len(sys.path) == before + 1
import course_utils, gradaudit
for package in (course_utils, gradaudit):
    assert package.__file__.startswith({str(tmp_path)!r}), package.__file__
assert len(course_utils.digits("test")[0]) == 360
assert len(course_utils.words()) == 63875
for name in json.loads(course_utils.data.read("manifest.json")):
    course_utils.data.read(name)
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    said, _, where = run.stdout.splitlines()[0].rpartition(" ")
    assert said == "Unpacked. To look into it, run this in a cell of its own: !ls -R"
    assert (Path(where) / "course_utils" / "stepping" / "page.html").is_file()


def test_the_set_up_cell_alone_asks_for_the_folded_one(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="Run the folded cell above this one first"):
        exec([cell.source for cell in edition("02_zeroing").cells if cell.cell_type == "code"][1], {})
