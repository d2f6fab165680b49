"""Makes subtle changes to a copy of the course and says which kinds of them the tests notice.

`python tests/changes` tries three of each kind, `--many 10` ten, `--seed 1` others, `--only link` the kinds whose name
has the pattern. A change is noticed if a test fails that passes without it, one of README's test command or of the
falsifiers. Changes to different notebooks are tried together: a test that carries the name of a notebook tells of the
change there, and what another test tells of is tried alone.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import kinds
import pytest
import torch  # noqa: F401  each process that is forked has it, and needs seconds less
from kinds import ROOT, Change
from tqdm import tqdm

PLAIN = ["-q", "-n0", "-o", "addopts=", "-p", "no:nbval", "-p", "no:cacheprovider", "-m", "not exhaustive"]
NBVAL = ["-q", "-n0", "-o", "addopts=", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env"]
TEXT = [f"tests/{name}" for name in ("test_notebooks.py", "test_prose.py", "test_formulas.py", "test_cards.py")]
TEXT += ["tests/practice/test_predictions.py", "tests/publish/test_contents.py", "tests/publish/test_facts.py"]
README = ["tests/test_side_by_side.py", "tests/test_compare.py"]
JUDGES = [f"tests/practice/test_{name}.py" for name in ("hints", "tolerances", "answers")]
THE_REST = [
    "tests/test_static.py",
    "tests/test_data.py",
    "tests/test_readme.py",
    "tests/publish",
    "tests/practice",
    *README,
]
READS = "tests/publish/test_contents.py", "tests/publish/test_facts.py"  # notebooks and facts, before any test runs


class Copy:
    """A copy of the course, in which tests run."""

    def __init__(self, folder: Path):
        self.folder = folder
        listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0"):
            if name and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)

    def failing(self, changes: list[Change], *arguments: str) -> list[str]:
        """The tests that fail with these changes, each to another file; a file that cannot be read fails as a whole."""
        before = {change.path: (self.folder / change.path).read_bytes() for change in changes}
        for change in changes:
            (self.folder / change.path).write_text(change.make(), encoding="utf-8")
        try:
            return self._failing(arguments)
        finally:
            for path, content in before.items():
                (self.folder / path).write_bytes(content)

    def _failing(self, arguments: tuple[str, ...]) -> list[str]:
        there = [part for part in arguments if not re.match(r"tests/[\w/.]+$", part) or (self.folder / part).exists()]
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            status = forked(self.folder, there, output.fileno())
            output.seek(0)
            said = output.read()
        found = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, flags=re.M)
        if not found and status not in (0, 5):  # 5: none was selected
            raise SystemExit(f"pytest {' '.join(there)} ended with {status}:\n{said}")
        return found

    def noticed(self, changes: list[Change], *arguments: str) -> dict[Change, list[str]]:
        """Which of the changes are noticed, and the tests that fail."""
        failing = self.failing(changes, *arguments)
        if any(" " not in test and "::" not in test for test in failing):  # a file of tests that could not begin
            return self._one_by_one(changes, *arguments)
        found: dict[Change, list[str]] = {}
        unclear = []
        for test in failing:
            mine = [change for change in changes if re.search(rf"(?<![a-z]){re.escape(change.stem)}", test)]
            (found.setdefault(mine[0], []) if len(mine) == 1 else unclear).append(test)
        for change in [change for change in changes if change not in found]:
            tests = [test for test in unclear if test.startswith(tuple(JUDGES)) == (change.area == "course_utils")]
            if tests and (alone := self.failing([change], *PLAIN, *tests)):
                found[change] = alone
        return found

    def fail_anyway(self, tests: set[str]) -> list[str]:
        """Those of the tests that fail without a change."""
        notebooks = {test.partition("::")[0] for test in tests if "::Cell" in test}
        others = {test for test in tests if "::" in test and "::Cell" not in test}
        return [
            *(self.failing([], *NBVAL, *sorted(notebooks)) if notebooks else []),
            *(self.failing([], *PLAIN, *sorted(others)) if others else []),
        ]

    def _one_by_one(self, changes: list[Change], *arguments: str) -> dict[Change, list[str]]:
        """For changes of which one cannot be read: that is noticed, and the others are tried without it."""
        found = {}
        for change in changes:
            if alone := [test for test in self.failing([change], *PLAIN, *READS) if "::" not in test]:
                found[change] = [f"{alone[0]} cannot read it"]
        left = [change for change in changes if change not in found]
        if not found:
            raise SystemExit(f"these together cannot be read: {[change.path for change in changes]}")
        return found | (self.noticed(left, *arguments) if left else {})


def forked(folder: Path, arguments: list[str], output: int) -> int:
    """Runs pytest in a process like this one, which has imported what takes long, and returns its status."""
    process = os.fork()
    if not process:
        os.chdir(folder)
        for stream in (1, 2):
            os.dup2(output, stream)
        sys.path[:] = [str(folder), *(path for path in sys.path if not is_of_the_checkout(Path(path)))]
        quiet = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        os.environ |= quiet | {"PYTHONPATH": str(folder)}
        sys.dont_write_bytecode = True  # two changes within a second would share it
        status = 1
        try:
            status = pytest.main(arguments)
        finally:
            sys.stdout.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def is_of_the_checkout(path: Path) -> bool:
    """Whether it lies in the checkout, but for a virtual environment there."""
    return ROOT in (path, *path.parents) and Path(sys.prefix) not in path.parents


def rounds(changes: list[Change]) -> list[list[Change]]:
    """Changes in groups, in each of which no two belong to one notebook."""
    groups: list[list[Change]] = []
    for change in changes:
        for group in groups:
            if change.stem not in {other.stem for other in group}:
                group.append(change)
                break
        else:
            groups.append([change])
    return groups


def of(changes: list[Change]) -> str:
    """Selects the tests of these changes' notebooks and those of none."""
    names = [Path(path).stem for path in kinds.books()]
    mine = [name for name in names if any(name in change.stem for change in changes)]
    return " or ".join([*mine, f"not ({' or '.join(names)})"])


def try_all(changes: list[Change], copy: Copy, near: bool) -> dict[Change, list[str]]:
    """The tests that notice each change that is noticed."""
    found: dict[Change, list[str]] = {}
    for group in tqdm(rounds(changes), desc="rounds"):
        tests = [*TEXT] if any(change.area in ("notebooks", "data") for change in group) else []
        tests += JUDGES if any(change.area == "course_utils" for change in group) else []
        tests += README if any(change.area == "README.md" for change in group) else []
        found |= copy.noticed(group, *PLAIN, *tests, "-k", of(group))
        for change in [change for change in group if change.runs and change not in found]:
            if change.area == "notebooks":
                found |= copy.noticed([change], *NBVAL, f"notebooks/{change.stem}.ipynb")
            if change not in found:
                found |= copy.noticed([change], *PLAIN, "tests/falsifiers", "-k", f"each_facts and {change.stem}")
    missed = [change for change in changes if change not in found and not near]
    for group in tqdm(rounds(missed), desc="missed, once more"):
        found |= copy.noticed(group, *PLAIN, *TEXT, *THE_REST, "-k", of(group))
    return found


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the copy goes, too
    parser = argparse.ArgumentParser(prog="python tests/changes", description=__doc__.partition("\n")[0])
    parser.add_argument("--many", type=int, default=3, help="changes of each kind")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--only", default="", help="only kinds whose name has this pattern")
    parser.add_argument("--near", action="store_true", help="leave out the tests that hardly could see a change")
    options = parser.parse_args()
    chosen = {
        name: changes
        for name, changes in kinds.chosen(options.seed, options.many).items()
        if re.search(options.only, name)
    }
    every = [change for changes in chosen.values() for change in changes]
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / "tmp"  # of the runs of pytest, which leave without tidying up
        temporary.mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
        copy = Copy(Path(folder) / "course")
        found = try_all(every, copy, options.near)
        if anyway := copy.fail_anyway({test for tests in found.values() for test in tests}):
            raise SystemExit(f"these fail without a change, too: {anyway}")
    for name, changes in chosen.items():
        print(f"{sum(change in found for change in changes)} of {len(changes)}  {name}")
        for change in changes:
            print(f"    {change.path}: {change.what}\n        {', '.join(found.get(change, ['MISSED']))}")
    print(f"noticed {len(found)} of {len(every)} changes of {len(chosen)} kinds, {len(found) / len(every):.0%}")


if __name__ == "__main__":
    main()
