"""Runs notebooks as README's test command does, under conditions that may not change what they print.

`python tests/conditions.py` runs all notebooks under all conditions, for hours; names of notebooks or `--only` choose:
`python tests/conditions.py notebooks/02_zeroing.ipynb --only "no HOME" "2 threads"`. It prints a table, and ends with 1
if any output differs. Each condition has a fresh copy of the checkout.
"""

import argparse
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tqdm import tqdm

ROOT = Path(__file__).parent.parent
CAPABILITIES = "default", "avx2", "avx512"
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && cd "$0" && exec "$@"'
UNCONNECTED = 'ip link set lo up && exec "$@"'  # kernels talk to the notebook through the loopback
FORKING = "import sys, pytest; sys.path[:0] = ['tests']; import conftest; sys.exit(pytest.main(sys.argv[1:]))"
PYTEST = ["-c", FORKING, "-q", "-n0", "-p", "no:cacheprovider", "--nbval", "--nbval-cell-timeout", "600"]
NOT_HERE = "not possible here"


@dataclass
class Condition:
    """What differs from an ordinary run: the environment, the folder's name, what the command is run by."""

    name: str
    environment: dict[str, str | None] = field(default_factory=dict)  # None takes a variable away
    folder: str = "course"
    runner: tuple[str, ...] = ()  # "{}" stands for the folder
    needs: str = ""  # why it cannot be tried here


def conditions(scratch: Path) -> Iterator[Condition]:
    yield Condition("1 thread", {"OMP_NUM_THREADS": "1"})
    yield Condition("2 threads", {"OMP_NUM_THREADS": "2"})
    best = subprocess.check_output(
        [sys.executable, "-c", "import torch; print(torch.backends.cpu.get_cpu_capability())"], text=True
    )
    has = CAPABILITIES.index(best.strip().lower()) if best.strip().lower() in CAPABILITIES else 0
    for place, capability in enumerate(CAPABILITIES):
        needs = "" if place <= has else "the processor has none"
        yield Condition(f"ATEN_CPU_CAPABILITY={capability}", {"ATEN_CPU_CAPABILITY": capability}, needs=needs)
    yield Condition("MKL_CBWR=COMPATIBLE", {"MKL_CBWR": "COMPATIBLE"})
    unshared = {kind: runs("unshare", f"--{kind}", "true") for kind in ("mount", "net")}
    yield Condition(
        "a read-only checkout",
        runner=("unshare", "--mount", "sh", "-c", READ_ONLY, "{}"),
        needs="" if unshared["mount"] else "needs unshare --mount",
    )
    yield Condition("a path with spaces and non-ASCII letters", folder="Übung für 学生, 2. Teil")
    yield Condition("no HOME", {"HOME": None})
    yield Condition(
        "no network",
        runner=("unshare", "--net", "sh", "-c", UNCONNECTED, "sh"),
        needs="" if unshared["net"] else "needs unshare --net",
    )
    yield Condition("LC_ALL=C", {"LC_ALL": "C"})
    german = scratch / "de_DE.UTF-8"
    yield Condition(
        "LC_ALL=de_DE.UTF-8",
        {"LC_ALL": "de_DE.UTF-8", "LOCPATH": str(scratch)},
        needs="" if runs("localedef", "-i", "de_DE", "-f", "UTF-8", str(german)) else "needs localedef",
    )
    yield Condition("TZ=Pacific/Chatham", {"TZ": "Pacific/Chatham"})
    for number in range(1, 11):
        yield Condition(f"run {number} of 10")


def runs(*command: str) -> bool:
    return bool(shutil.which(command[0])) and not subprocess.run(command, capture_output=True, check=False).returncode


def copied(folder: Path) -> None:
    """Everything that is, or will be, committed."""
    names = subprocess.check_output(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"], text=True
    )
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def differing(condition: Condition, notebooks: list[str], scratch: Path) -> list[str]:
    """The cells that fail under a condition, each with what nbval says of it."""
    folder, result = scratch / condition.folder, scratch / "result.xml"
    copied(folder)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder), **condition.environment}
    environment = {name: value for name, value in environment.items() if value is not None}
    command = [*(part.format(folder) for part in condition.runner), sys.executable, *PYTEST]
    run = subprocess.run(
        [*command, f"--junitxml={result}", *notebooks], cwd=folder, env=environment, capture_output=True, text=True
    )
    if run.returncode not in (0, 1):
        return [f"pytest ended with {run.returncode}: {(run.stdout + run.stderr)[-2_000:]}"]
    cases = list(ET.parse(result).iter("testcase"))
    if not cases:
        return ["no cell was run"]
    return [
        f"{case.get('classname')} {case.get('name')}: {problem.get('message', '')[:500]}"
        for case in cases
        for problem in [*case.findall("failure"), *case.findall("error")]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("notebooks", nargs="*", default=["notebooks"], help="paths; without any, all notebooks")
    parser.add_argument(
        "--only", nargs="+", metavar="CONDITION", help="the names of some conditions, or their beginnings"
    )
    options = parser.parse_args()
    rows, total = [], 0
    with TemporaryDirectory() as scratch:
        chosen = [c for c in conditions(Path(scratch)) if not options.only or c.name.startswith(tuple(options.only))]
        for condition in tqdm(chosen, desc="conditions"):
            if condition.needs:
                rows.append((condition.name, f"{NOT_HERE}: {condition.needs}"))
                continue
            with TemporaryDirectory() as folder:
                found = differing(condition, options.notebooks, Path(folder))
            total += len(found)
            rows.append((condition.name, str(len(found))))
            tqdm.write("\n".join([f"{condition.name}: {len(found)}", *found]), file=sys.stderr)
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:{width}}  {count}" for name, count in [("condition", "differing outputs"), *rows]))
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
