"""The package as a whole: what it imports and when, its public face, its wheel."""

import ast
import doctest
import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import hatchling.build
import pytest

import course_utils
from course_utils import data

PACKAGE = Path(course_utils.__file__).parent
MODULES = sorted(  # a room is a module or a folder of modules: "loops", "exercises", "exercises.verdict"
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.parent != PACKAGE or path.stem != "__init__"
)

TORCH = {"torch", "numpy"}
ROOMS = {  # what each may import: lower rooms never import higher ones
    **{room: TORCH for room in ("data", "loops", "memory", "models", "observe")},
    "ranks": {*TORCH, "tqdm", "course_utils"},  # course_utils for its path
    "plots": {*TORCH, "observe", "matplotlib", "IPython"},
    "zoo": {*TORCH, "data", "loops", "models"},
    "audit": {*TORCH, "course_utils", "observe", "plots", "zoo", "matplotlib"},
    "practice": {*TORCH, "data", "loops", "memory", "models", "plots", "IPython", "ipywidgets"},
    "publish": {"audit", "data", "practice", "tqdm", "pypandoc", "typst"},
    "final": {"practice"},  # commands
    "colab": {"publish"},
    "handouts": {"publish"},
}
WITHOUT_EXAMPLES = ("plots", "practice", "ranks.worker", "audit", "publish", "colab", "final", "handouts", "zoo.")


def python(code, cwd=None, **environment):
    """What a new Python prints, as JSON."""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_importing_the_package_is_quick_and_imports_no_plotting_and_no_widgets():
    code = """
import json, sys, time, torch
start = time.perf_counter()
import course_utils
seconds = time.perf_counter() - start
late = {"matplotlib", "ipywidgets", "jupyterlab", "IPython"} & {name.split(".")[0] for name in sys.modules}
print(json.dumps([seconds, sorted(late)]))
"""
    for _ in range(3):  # the best of three
        seconds, late = python(code)
        assert late == []
        if seconds <= 0.15:
            break
    assert seconds <= 0.15


def imported(module):
    """The names of packages, and of modules of this package, that a module imports anywhere in its code."""
    source = import_module(f"course_utils.{module}").__file__
    for node in ast.walk(ast.parse(Path(source).read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: write imports from course_utils in full"
            names = [node.module] if node.module != "course_utils" else [f"course_utils.{a.name}" for a in node.names]
        yield from (name.split(".")[name.startswith("course_utils.")] for name in names)


@pytest.mark.parametrize("module", MODULES)
def test_a_room_imports_only_what_lies_below_it(module):
    room = module.split(".")[0]
    assert set(imported(module)) - sys.stdlib_module_names <= {*ROOMS[room], room}


@pytest.mark.parametrize("name", course_utils.__all__)
def test_a_public_name_is_there_and_says_what_it_is(name):
    thing = getattr(course_utils, name)
    assert thing.__module__.startswith("course_utils.")
    assert thing.__doc__


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'acumulate'"):
        course_utils.acumulate  # noqa: B018


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_are_true(module):
    results = doctest.testmod(import_module(f"course_utils.{module}"))
    assert results.failed == 0
    assert results.attempted or module in ("loops", "observe") or module.startswith(WITHOUT_EXAMPLES)


def test_installed_from_a_wheel_into_an_empty_folder_the_data_are_there(tmp_path, monkeypatch):
    source, site, elsewhere = tmp_path / "source", tmp_path / "site", tmp_path / "elsewhere"
    for name in ("course_utils", "data"):
        shutil.copytree(PACKAGE.parent / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PACKAGE.parent / name, source)
    elsewhere.mkdir()
    monkeypatch.chdir(source)
    wheel = tmp_path / hatchling.build.build_wheel(str(tmp_path))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    templates = {path.name for path in (PACKAGE / "publish" / "handouts" / "templates").iterdir()}
    assert {path.name for path in (site / "course_utils" / "publish" / "handouts" / "templates").iterdir()} == templates
    folder = site / "course_utils" / "_data"
    packed = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert packed >= data.manifest().keys() | {"manifest.json"}
    code = """
import json, course_utils
images, labels = course_utils.digits("test")
print(json.dumps([course_utils.__file__, list(images.shape), len(course_utils.words())]))
"""
    where, shape, words = python(code, cwd=elsewhere, PYTHONPATH=str(site))
    assert Path(where).resolve() == (site / "course_utils" / "__init__.py").resolve()
    assert shape == [360, 64]
    assert words == 63875
