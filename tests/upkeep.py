"""Says what a new torch, IPython or Colab changes: `python tests/upkeep.py`, in the environment that has it.

Without arguments it runs what README's test command runs; a notebook, `tests/loops` or options are handed on to pytest.
At the end it names the assertions that fail, the outputs that differ from the committed ones, and the calls for which
torch gives a DeprecationWarning or a FutureWarning, in this process or in one that a test starts. The exit status is 1
if an assertion fails.
"""

import difflib
import json
import os
import platform
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).parents[1]
WATCHED = "torch", "ipython", "ipykernel", "ipywidgets", "matplotlib", "numpy"
NOTES = "COURSE_WARNED"  # see warned/sitecustomize.py
DIFFERENCE = "difference"
NOT_COMPARED = "image/png", "application/vnd.jupyter.widget-view+json"
LONGEST_LINE = 200


class Changes:
    """What a run of pytest shows; one of its plugins."""

    def __init__(self):
        self.outcomes: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        self.differences: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
        if difference := dict(report.user_properties).get(DIFFERENCE):
            self.differences[report.nodeid] = difference
        elif report.failed:
            self.failures[report.nodeid] = report.longreprtext


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """In the process that has run a cell: how its outputs differ, if that is what has failed."""
    report = yield
    if call.excinfo and str(call.excinfo.value) == "Cell outputs differ":
        report.user_properties.append((DIFFERENCE, difference(item.cell.outputs, item.test_outputs)))
    return report


def difference(committed: list, new: list) -> str:
    """The lines of a cell's outputs that are gone and those that have come, as in a diff."""
    lines = list(difflib.unified_diff(_lines(committed), _lines(new), n=0, lineterm=""))[2:]
    return "\n".join(line[:LONGEST_LINE] for line in lines if not line.startswith("@@"))


def _lines(outputs: list) -> list[str]:
    texts = []
    for output in outputs:
        data = output.get("data", {})
        texts += [output.get("text", ""), *(str(data[kind]) for kind in sorted(data) if kind not in NOT_COMPARED)]
    return [line for text in texts for line in text.splitlines()]


def deprecated(notes: Iterable[str]) -> dict[str, set[str]]:
    """Each warning, with the lines of code that brought it."""
    found = defaultdict(set)
    for note in map(json.loads, notes):
        found[f"{note['kind']}: {note['message'].splitlines()[0]}"].add(note["where"])
    return dict(sorted(found.items()))


def versions() -> str:
    """What the environment has, with the version that made the committed outputs if that is another one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = dict(pin.split("==") for pin in project["optional-dependencies"]["lab"])
    has = [f"Python {platform.python_version()} on {platform.system()}"]
    for name in WATCHED:
        try:
            here = version(name)
        except PackageNotFoundError:
            here = "missing"
        same = here.partition("+")[0] == pinned.get(name, here)
        has.append(f"{name} {here}" + ("" if same else f" (pinned: {pinned[name]})"))
    return ", ".join(has)


def summary(changes: Changes, warned: dict[str, set[str]]) -> str:
    """The page that a run ends with."""
    page = [versions(), ", ".join(f"{count} {outcome}" for outcome, count in changes.outcomes.items())]
    for title, found in (
        ("Assertions that fail", changes.failures),
        ("Outputs that differ", changes.differences),
        ("Calls that torch warns of", {warning: "\n".join(sorted(lines)) for warning, lines in warned.items()}),
    ):
        page.append(f"\n{title}: {len(found) or 'none'}")
        for name, text in found.items():
            page += [f"  {name}", *(f"    {line}" for line in text.splitlines())]
    return "\n".join(page)


def run(arguments: list[str]) -> int:
    """Runs pytest in this process and prints the page; its own pages about failures are left out."""
    options = ["--nbval", "--tb=no", "--color=no", "-q", "-p", "upkeep"]
    if not find_spec("xdist"):  # as in Colab
        options += ["-o", "addopts=", "-m", "not exhaustive", "--nbval-current-env", "--nbval-cell-timeout=120"]
    changes = Changes()
    status = pytest.main([*options, *arguments], plugins=[changes])
    notes = Path(os.environ[NOTES])
    print("\n" + summary(changes, deprecated(notes.read_text(encoding="utf-8").splitlines() if notes.exists() else [])))
    return int(bool(changes.failures)) if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else status


def main(arguments: list[str]) -> int:
    """Starts the run in a process in which torch's warnings are noted, as in all that this one starts."""
    with TemporaryDirectory() as folder:
        noting = filter(None, (str(ROOT / "tests" / "warned"), os.environ.get("PYTHONPATH")))
        environment = {NOTES: str(Path(folder, "notes")), "PYTHONPATH": os.pathsep.join(noting)}
        command = [sys.executable, __file__, *arguments]
        return subprocess.run(command, env=os.environ | environment, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit((run if NOTES in os.environ else main)(sys.argv[1:]))
