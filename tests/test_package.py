"""The package as a whole: what it imports and when, its public face, its wheel."""

import doctest
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import import_module
from pathlib import Path

import hatchling.build
import pytest

import course_utils
import gradaudit
from course_utils import data

PACKAGE = Path(course_utils.__file__).parent
ROOT = PACKAGE.parent
SOURCES = sorted([*PACKAGE.rglob("*.py"), *Path(gradaudit.__file__).parent.rglob("*.py")])
ROOMS = re.findall(r"^    (\w+) +[\w`]", course_utils.__doc__, flags=re.M)  # from the lowest to the highest


def python(code, cwd=None, **environment):
    """What a new Python prints, as JSON."""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_importing_the_package_imports_nothing_from_elsewhere_but_torch():
    code = """
import json, sys, torch
before = set(sys.modules)
import course_utils
import gradaudit
print(json.dumps(sorted({name.split(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)))
"""
    found = [name for name in python(code) if not name.startswith("_sysconfigdata")]  # of Python, by another name
    assert found == ["course_utils", "gradaudit"]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_above_it_in_the_list(room):
    files = [path for path in SOURCES if path.is_relative_to(PACKAGE / room) or path == PACKAGE / f"{room}.py"]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert set(re.findall(r"(?:from|import) course_utils\.(\w+)", code)) <= set(ROOMS[: ROOMS.index(room) + 1])


@pytest.mark.parametrize("name", course_utils.__all__)
def test_a_public_name_is_there_and_says_what_it_is_with_an_example(name):
    thing = getattr(course_utils, name)
    assert thing.__module__.startswith(("course_utils.", "gradaudit."))
    assert "Example:\n" in thing.__doc__


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'acumulate'"):
        course_utils.acumulate  # noqa: B018


@pytest.mark.parametrize("name", ["check", "predict", "ledger", "Ranks"])
def test_a_name_without_its_libraries_names_the_extra(name, monkeypatch):
    monkeypatch.setattr(course_utils, "find_spec", lambda library: None if library == "matplotlib" else library)
    with pytest.raises(ImportError, match=rf"{name} needs matplotlib: install .* extra `course`"):
        getattr(course_utils, name)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: "/".join(path.relative_to(ROOT).parts))
def test_the_examples_in_docstrings_are_true(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    assert doctest.testmod(import_module(name)).failed == 0


def test_installed_from_a_wheel_into_an_empty_folder_the_data_are_there(tmp_path, monkeypatch):
    source, site, elsewhere = tmp_path / "source", tmp_path / "site", tmp_path / "elsewhere"
    for name in ("course_utils", "gradaudit", "data"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    elsewhere.mkdir()
    monkeypatch.chdir(source)
    wheel = tmp_path / hatchling.build.build_wheel(str(tmp_path))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    assert (site / "course_utils" / "stepping" / "page.html").is_file()
    folder = site / "course_utils" / "_data"
    packed = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert packed >= json.loads(data.read("manifest.json")).keys() | {"manifest.json"}
    code = """
import json, course_utils
images, labels = course_utils.digits("test")
print(json.dumps([course_utils.__file__, list(images.shape), len(course_utils.words())]))
"""
    where, shape, words = python(code, cwd=elsewhere, PYTHONPATH=str(site))
    assert Path(where).resolve() == (site / "course_utils" / "__init__.py").resolve()
    assert shape == [360, 64]
    assert words == 63875


def test_the_auditor_alone_has_a_wheel(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT / "gradaudit")
    with zipfile.ZipFile(tmp_path / hatchling.build.build_wheel(str(tmp_path))) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {path.relative_to(ROOT).as_posix() for path in (ROOT / "gradaudit").rglob("*.py")}


def test_the_sdist_holds_what_the_readme_and_the_tests_need(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    with tarfile.open(tmp_path / hatchling.build.build_sdist(str(tmp_path))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    linked = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    tests = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/*.py")]
    assert packed >= {*linked, *tests, "conftest.py", "pyproject.toml"}
