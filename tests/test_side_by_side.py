"""The frameworks' loops that run here make the recorded updates; the tables show them."""

import json
import re
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from course_utils.data import read

ROOT = Path(__file__).parents[1]
EXACT = 1e-12

recorded = json.loads(read("measurements/side_by_side.json"))
ROWS = recorded["rows"]


def name(row):
    return f"{row['library']}, {row['form']}, {row['ranks']}"


def test_every_loop_of_the_notebook_whose_library_is_installed_makes_the_updates_that_are_recorded():
    spec = spec_from_file_location("side_by_side", ROOT / "tests" / "benchmarks" / "side_by_side.py")
    bench = module_from_spec(spec)
    spec.loader.exec_module(bench)
    installed = {
        library
        for library, package in bench.LIBRARIES.items()
        if package == "torch" or (find_spec(package) and version(package) == recorded["versions"][package])
    }
    found = {name(row): row for row in bench.of_the_notebook(installed)["record"]["rows"]}
    assert found.keys() == {name(row) for row in ROWS}
    for kept in ROWS:
        row = found[name(kept)]
        assert all(row[key] == kept[key] for key in ("windows", "scheduled"))
        for which in {"equal", "fixed", "full", "short"} & kept.keys():
            assert row[which] == pytest.approx(kept[which], rel=1e-6, abs=EXACT)


def in_the_table(library: str, form: str) -> str:
    one, two = [row for row in ROWS if (row["library"], row["form"]) == (library, form)]
    errors = [
        f"{row[which]:.0e}" if row[which] < EXACT else f"{row[which]:.2g}"
        for row, which in ((one, "equal"), *((row, which) for row in (one, two) for which in ("full", "short")))
    ]
    return " | ".join(errors)


def test_the_sites_table_is_the_record():
    page = ROOT / "docs" / "loop.md"
    table = re.findall(
        r"^\| [^|]+ \| ((?:\d[\d.e-]* \| ){4}\d[\d.e-]*) \|$", page.read_text(encoding="utf-8"), flags=re.M
    )
    assert table == [in_the_table(row["library"], row["form"]) for row in ROWS[::2]]


def test_what_readme_says_of_libraries_is_the_record():
    def of(library, form):
        return next(row for row in ROWS if (row["library"], row["form"]) == (library, form))  # on one rank

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    plain = [of("Accelerate", "guide"), of("Lightning Trainer", "guide")]
    assert {f"by {row['full']:.0%} of its norm" in readme for row in plain} == {True}
    for row in (of("Accelerate", "guide variable size"), of("Lightning Trainer", "correct")):
        assert max(row["fixed"], row["largest"]) < EXACT
