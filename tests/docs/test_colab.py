"""The editions for Colab: all that they need is in them, no link is dead, nothing is given away."""

import base64
import copy
import hashlib
import importlib.util
import io
import json
import re
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest
from course_utils.publish import PublishError, colab
from course_utils.publish.colab import edition, hosted
from course_utils.publish.notebook import is_folded, tags

from course import NOTEBOOKS

ROOT = Path(__file__).parents[2]

each_notebook = pytest.mark.parametrize("name", NOTEBOOKS)
some_notebooks = pytest.mark.parametrize("name", ["00_start", "02_zeroing"])


@pytest.fixture(scope="module", autouse=True)
def packed_once():
    """The package is compressed once for each set of files."""
    original = colab._archive
    packed = cache(lambda files: original(files))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(colab, "_archive", lambda files: packed(tuple(files)))
        yield


@cache
def plain(name):
    """The edition of a notebook where no repository hosts it, for tests that look at it only."""
    return edition(NOTEBOOKS[name])


def prose(notebook) -> str:
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


@some_notebooks
def test_an_edition_is_small_folded_as_in_jupyterlab_has_no_outputs_and_installs_nothing(name):
    made = plain(name)
    assert len(json.dumps(made)) < 1_500_000
    for cell in made.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
            assert not re.search(r"^\s*[!%]|\bpip\b", cell.source, flags=re.M)
        assert "instructor" not in tags(cell)
        if is_folded(cell, "source"):
            assert cell.metadata["cellView"] == "form"
            assert cell.source.startswith("# @title ")

    text = prose(made)  # without a repository there is no badge, and no link to a file
    assert "colab.research.google.com" not in text
    assert not re.findall(r"\]\((?!https?://|#)[^)]*\)", text)
    assert "badge" not in text


@some_notebooks
def test_with_a_repository_the_badge_and_the_links_lead_to_editions_in_it(name):
    made = edition(NOTEBOOKS[name], "somebody/course")
    text = prose(made)
    at = "https://colab.research.google.com/github/somebody/course/blob/colab/"
    title = made.cells[0].source
    assert re.match(
        rf"# .+\n\n\[!\[Open in Colab\]\(\S+\.svg\)\]\({re.escape(at)}{name}\.ipynb\)\n\n\*\*\d\d minutes", title
    )
    assert not re.findall(r"\]\((?!https?://|#)[^)]*\)", text)
    linked = set(re.findall(rf"{re.escape(at)}(\w+)\.ipynb", text))
    assert linked <= NOTEBOOKS.keys()
    assert len(linked) > 1


def test_the_notebook_itself_is_left_as_it_is():
    before = copy.deepcopy(NOTEBOOKS["02_zeroing"].node)
    edition(NOTEBOOKS["02_zeroing"], "somebody/course")
    assert NOTEBOOKS["02_zeroing"].node == before


def test_the_repository_is_one_setting_of_pyproject(tmp_path):
    pyproject = tmp_path / "pyproject.toml"
    for written, read in (("", ""), ("[tool.course]\n", ""), ('[tool.course]\nrepository = ""', "")):
        pyproject.write_text(written)
        assert hosted(pyproject) == read
    pyproject.write_text('[tool.course]\nrepository = "somebody/course"')
    assert hosted(pyproject) == "somebody/course"
    pyproject.write_text('[tool.course]\nrepository = "https://example.org/course"')
    with pytest.raises(PublishError, match='must be "owner/name" or ""'):
        hosted(pyproject)
    with pytest.raises(PublishError, match=r"nothing\.toml cannot be read"):
        hosted(tmp_path / "nothing.toml")
    hosted(ROOT / "pyproject.toml")


@pytest.mark.parametrize(("name", "digits", "words"), [("02_zeroing", 360, 0), ("should_you_accumulate", 0, 63875)])
def test_in_an_empty_folder_the_first_cells_bring_the_package_and_its_data(name, digits, words, tmp_path):
    first, set_up = [cell.source for cell in plain(name).cells if cell.cell_type == "code"][:2]
    (tmp_path / "first.py").write_text(first, encoding="utf-8")
    (tmp_path / "set_up.py").write_text(set_up, encoding="utf-8")
    code = f"""
import sys, tempfile
tempfile.tempdir = {str(tmp_path)!r}
before = len(sys.path)
for cell in ("first.py", "first.py", "set_up.py", "first.py", "set_up.py"):  # running them again changes nothing
    exec(open(cell, encoding="utf-8").read(), globals())
assert len(sys.path) == before + 1
import course_utils
assert course_utils.__file__.startswith({str(tmp_path)!r}), course_utils.__file__
for load, expected in ((lambda: course_utils.digits("test")[0], {digits}), (course_utils.words, {words})):
    try:
        found = len(load())
    except course_utils.data.DataError:
        found = 0
    assert found == expected
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    *unpacked, rest = run.stdout.split("\n", 3)
    assert set(unpacked) == {unpacked[0]}
    said, _, where = unpacked[0].rpartition(" ")
    assert said == "Unpacked. To look into it, run this in a cell of its own: !ls -R"
    assert (Path(where) / "course_utils" / "practice" / "ask.py").is_file()
    assert rest == ""


def test_the_set_up_cell_alone_asks_for_the_folded_one():
    _, set_up = [cell.source for cell in plain("02_zeroing").cells if cell.cell_type == "code"][:2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(SystemExit, match="Run the folded cell above this one first"):
            exec(set_up, {})


def test_the_folded_cell_says_what_it_holds_and_its_hash_and_refuses_to_run_if_it_was_changed():
    folded = plain("06_tokens").cells[1].source
    title, holds, _, look = folded.splitlines()[:4]
    assert "Run this cell first" in title
    packed = base64.b64decode(folded.split('"""')[1])
    names = {name.split("/")[2] for name in zipfile.ZipFile(io.BytesIO(packed)).namelist() if "/_data/" in name}
    assert set(re.findall("`(.*?)`", holds)) == names | {"course_utils"}
    assert "words.txt.gz" in names
    assert f"sha256 is `{hashlib.sha256(packed).hexdigest()}`" in look
    before = sys.path[:]
    with pytest.raises(RuntimeError, match="not as it was packed"):
        exec(folded.replace("\nUEsDB", "\nUEsDC"), {})
    assert sys.path == before


@each_notebook
def test_every_file_that_a_notebook_reads_is_packed(name):
    code = [cell.source for cell in plain(name).cells if cell.cell_type == "code"]
    packed = zipfile.ZipFile(io.BytesIO(base64.b64decode(code[0].split('"""')[1])))
    described = json.loads(packed.read("course_utils/_data/manifest.json"))
    assert {f"course_utils/_data/{file}" for file in described} <= set(packed.namelist())
    assert not [file for file in packed.namelist() if "/facts/" in file]
    assert f"course_utils/_data/predictions/{name}.toml" in packed.namelist()
    read = set(re.findall(r'\bread\("(.*?)"\)', "\n".join(code[1:])))
    assert read <= described.keys()
    if re.search(r"\bpublic_loop\(|\bZOO\b", "\n".join(code[1:])):  # loops of the zoo, which train on both
        assert {"digits.csv.gz", "words.txt.gz"} <= described.keys()
    assert {file for file in described if file.startswith("measurements/")} <= read  # they are large


def test_the_command_writes_the_editions_it_is_asked_for(tmp_path, capsys):
    assert colab.main(["--out", str(tmp_path / "new" / "folder"), "--notebooks", "02_zeroing", "00_start"]) == 0
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == {"02_zeroing.ipynb", "00_start.ipynb"}
    assert "02_zeroing.ipynb  " in capsys.readouterr().out
    assert colab.main(["--out", str(tmp_path), "--notebooks", "02_zeroing", "nothing"]) == 2
    assert "colab: there is no notebook 'nothing', only 00_start" in capsys.readouterr().err
    assert not (tmp_path / "02_zeroing.ipynb").exists()


def test_where_one_edition_cannot_be_written_none_is_and_the_old_ones_stay(tmp_path, capsys):
    (tmp_path / "00_start.ipynb").write_text("of yesterday")
    (tmp_path / "02_zeroing.ipynb").mkdir()  # in the way
    assert colab.main(["--out", str(tmp_path), "--notebooks", "00_start", "01_gradients", "02_zeroing"]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(rf"colab: cannot write in {tmp_path}: .+; nothing was written\n", error)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00_start.ipynb", "02_zeroing.ipynb"]
    assert (tmp_path / "00_start.ipynb").read_text() == "of yesterday"


def test_an_interrupt_leaves_nothing_behind(tmp_path, monkeypatch, capsys):
    calls = []

    def interrupted(notebook, repository):
        calls.append(notebook.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return notebook.node

    monkeypatch.setattr(colab, "edition", interrupted)
    assert colab.main(["--out", str(tmp_path / "new"), "--notebooks", "00_start", "01_gradients"]) == 2
    assert capsys.readouterr().err == "colab: interrupted, nothing was written\n"
    assert list(tmp_path.iterdir()) == []
