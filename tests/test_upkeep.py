"""The upkeep command: what it says of a run, which warnings it notes; and the versions, which stand in few places."""

import re
import tomllib
import warnings
from pathlib import Path

import pytest
from nbformat.v4 import new_output
from typing_extensions import deprecated
from upkeep import DIFFERENCE, Changes, difference, summary
from upkeep import deprecated as warned_of
from warned.sitecustomize import note

ROOT = Path(__file__).parents[1]


class Report:
    """The part of pytest's reports that is read."""

    def __init__(self, nodeid, outcome, longreprtext="", when="call", **properties):
        self.nodeid, self.outcome, self.when, self.longreprtext = nodeid, outcome, when, longreprtext
        self.failed, self.user_properties = outcome == "failed", list(properties.items())


def printed(text):
    return new_output("stream", text=text)


def test_a_difference_shows_the_lines_that_changed_and_no_pictures():
    def figure(shade):
        return new_output("display_data", {"image/png": shade, "text/plain": "<Figure>"})

    assert difference([printed("a\nb\n"), figure("white")], [printed("a\nc\n"), figure("black")]) == "-b\n+c"
    assert difference([], [new_output("stream", name="stderr", text="Watch out")]) == "+Watch out"


def test_a_page_tells_failed_assertions_from_outputs_that_differ():
    changes = Changes()
    for report in (
        Report("cell 1", "passed", when="setup"),
        Report("cell 1", "passed"),
        Report("cell 2", "failed", "Cell outputs differ: all of it", **{DIFFERENCE: "-b\n+c"}),
        Report("cell 3", "failed", "AssertionError"),
        Report("test", "skipped", when="setup"),
        Report("another", "failed", "in its fixture", when="setup"),
    ):
        changes.pytest_runtest_logreport(report)
    page = summary(changes, {"FutureWarning: old": {"old()"}})
    assert "1 passed, 3 failed, 1 skipped" in page
    assert re.search(
        r"fail: 2\n  cell 3\n    AssertionError\n  another\n    in its fixture\n"
        r".*differ: 1\n  cell 2\n    -b\n    \+c\n.*warns of: 1\n  FutureWarning: old\n    old\(\)$",
        page,
        re.S,
    )


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """The warnings that are noted, each with the lines of code that brought it."""
    monkeypatch.setattr(warnings, "warn", note(warnings.warn, tmp_path / "notes"))
    return lambda: warned_of((tmp_path / "notes").read_text().splitlines() if (tmp_path / "notes").exists() else [])


def of(package, kind, decorated=False):
    """A function of this package that warns."""
    names = {"__name__": f"{package}.inside", "warnings": warnings, "kind": kind, "deprecated": deprecated}
    body = "def deepest(): pass" if decorated else "def deepest(): warnings.warn('old\\nvery', kind, stacklevel=2)"
    exec(("@deprecated('old', category=kind)\n" if decorated else "") + body + "\ndef call(): deepest()", names)
    return names["call"]


@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize("kind", [DeprecationWarning, FutureWarning])
def test_what_torch_deprecates_is_noted_with_the_line_that_called_torch(notes, kind, decorated):
    with warnings.catch_warnings(record=True, action="ignore"):  # no filter hides it
        of("torch", kind, decorated)()
    assert notes() == {f"{kind.__name__}: old": {'of("torch", kind, decorated)()'}}


def test_other_warnings_are_not_noted_and_all_are_shown_where_they_were(notes):
    for package, kind in (("torch", UserWarning), ("torchvision", FutureWarning)):
        with warnings.catch_warnings(record=True, action="always") as shown:
            of(package, kind)()
        assert [(w.category, w.filename, w.lineno) for w in shown] == [(kind, "<string>", 2)]
    assert notes() == {}


def test_the_lowest_and_the_pinned_torch_are_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (lowest,) = [need.removeprefix("torch>=") for need in project["dependencies"] if need.startswith("torch")]
    (pinned,) = [pin for pin in project["optional-dependencies"]["lab"] if pin.startswith("torch")]

    def text(name):
        return (ROOT / name).read_text(encoding="utf-8")

    assert f'torch: ["torch=={lowest}.0", "torch"]' in text(".github/workflows/test.yml")
    assert pinned in text("tests/colab/requirements.txt").splitlines()
    assert f"torch {pinned.removeprefix('torch==')}" in text("README.md")
    assert f"torch {lowest}" in text("README.md")
