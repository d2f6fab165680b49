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
import gradaudit
from course_utils import data

PACKAGE = Path(course_utils.__file__).parent
MODULES = sorted(  # a room is a module or a folder of modules: "loops", "exercises", "exercises.verdict"
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.parent != PACKAGE or path.stem != "__init__"
)

TORCH = {"torch", "numpy"}
ROOMS = {  # from the lowest to the highest: the rooms that each imports, and the packages
    "data": (set(), {"torch"}),
    "models": (set(), {"torch"}),
    "loops": (set(), {"torch", "gradaudit"}),
    "memory": (set(), {"torch"}),
    "recording": (set(), {"torch", "gradaudit"}),
    "ranks": ({"data"}, {"torch", "tqdm", "cloudpickle", "gradaudit"}),
    "plots": ({"recording"}, {"matplotlib"}),
    "zoo": ({"data", "recording"}, {"torch", "gradaudit"}),
    "project": ({"data", "memory", "models", "plots", "ranks"}, {"matplotlib", "torch", "tqdm", "gradaudit"}),
    "practice": (
        {"data", "loops", "memory", "models", "recording", "ranks", "zoo"},
        {"torch", "IPython", "ipywidgets", "traitlets", "tqdm", "gradaudit"},
    ),
    "publish": (
        {"data", "recording", "plots", "practice", "zoo"},
        {
            "tqdm",
            "torch",
            "nbformat",
            "ipywidgets",
            "PIL",
            "pygments",
            "pypandoc",
            "typst",
            "sphinx",
            "docutils",
            "gradaudit",
        },
    ),
    "colab": ({"publish"}, set()),
    "final": ({"publish"}, set()),
    "handouts": ({"publish"}, set()),
}
WITHOUT_EXAMPLES = (
    *("zoo.", "plots", "practice", "ranks.ddp_example", "ranks.worker", "project", "publish"),
    *("colab", "final", "handouts"),
)


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
    assert python(code) == ["course_utils", "gradaudit"]  # how long it takes: tests/benchmarks/import_time.py


def test_the_auditor_imports_nothing_of_the_course():
    code = """
import json, sys
import gradaudit
print(json.dumps(sorted({"course_utils", "matplotlib", "ipywidgets", "tqdm", "cloudpickle"} & set(sys.modules))))
"""
    assert python(code) == []


def source(module):
    return Path(import_module(f"course_utils.{module}").__file__).read_text(encoding="utf-8")


def imported(code):
    """The rooms, and the packages from elsewhere, that code imports anywhere. The package itself is the room ""."""
    rooms, packages = set(), set()
    for node in ast.walk(ast.parse(code)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write imports from course_utils in full"
            names = [node.module] if node.module != "course_utils" else [f"course_utils.{a.name}" for a in node.names]
        for name in names:
            first, *rest = name.split(".")
            (rooms.add("".join(rest[:1])) if first == "course_utils" else packages.add(first))
    return rooms, packages - sys.stdlib_module_names


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_what_it_is_granted_and_is_granted_what_it_imports(room):
    found = [imported(source(module)) for module in MODULES if module.split(".")[0] == room]
    rooms, packages = (set().union(*sets) for sets in zip(*found, strict=True))
    assert (rooms - {room}, packages) == ROOMS[room]


def test_every_room_is_in_the_list_and_is_granted_rooms_below_it_alone():
    assert {module.split(".")[0] for module in MODULES} == set(ROOMS)
    order = ["", *ROOMS]  # the package itself stands below: a room may ask where it lies
    for room, (granted, _) in ROOMS.items():
        assert all(order.index(lower) < order.index(room) for lower in granted), room


def test_tab_offers_every_public_name_before_it_is_first_used():
    code = """
import json
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.Completer.use_jedi = False
shell.run_cell("import course_utils")
_, names = shell.complete("course_utils.", "course_utils.")
print(json.dumps([name.removeprefix("course_utils") for name in names]))
"""
    assert {f".{name}" for name in course_utils.__all__} <= set(python(code))


@pytest.mark.parametrize("name", course_utils.__all__)
def test_a_public_name_is_there_and_says_what_it_is_with_an_example(name):
    thing = getattr(course_utils, name)
    assert thing.__module__.startswith(("course_utils.", "gradaudit."))
    assert "Example:\n" in thing.__doc__


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'acumulate'"):
        course_utils.acumulate  # noqa: B018


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("path", sorted(Path(gradaudit.__file__).parent.rglob("*.py")), ids=lambda path: path.stem)
def test_the_auditors_examples_are_true(path):
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    assert doctest.testmod(import_module(name)).failed == 0


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_are_true(module):
    results = doctest.testmod(import_module(f"course_utils.{module}"))
    assert results.failed == 0
    assert results.attempted or module in ("loops", "recording", "ranks") or module.startswith(WITHOUT_EXAMPLES)


def test_installed_from_a_wheel_into_an_empty_folder_the_data_are_there(tmp_path, monkeypatch):
    source, site, elsewhere = tmp_path / "source", tmp_path / "site", tmp_path / "elsewhere"
    for name in ("course_utils", "gradaudit", "data"):
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
    assert (site / "course_utils" / "practice" / "stepping" / "page.html").is_file()
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
