"""The loops that compare.py times make the same updates; the tables are the record's."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from course_utils.data import read

ROOT = Path(__file__).parents[1]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "tests" / "benchmarks")
    import compare
    from side_by_side import EXACT

TINY = replace(compare.CASES[0], windows=2, rounds=2)
OWN = [name for name in compare.LOOPS if name not in compare.LIBRARIES]
recorded = json.loads(read("measurements/compare.json"))


def test_the_own_loops_are_measured_and_make_the_updates_of_the_large_batch():
    found = compare.measure(TINY, OWN)
    assert list(found["loops"]) == OWN
    assert found["seconds"] > 0
    for loop in found["loops"].values():
        assert loop["error"] < EXACT
        assert 0 < loop["low"] <= loop["ratio"] <= loop["high"]


@pytest.mark.parametrize("name", compare.LIBRARIES)
def test_a_librarys_loop_is_measured_and_makes_the_updates_of_the_large_batch(name):
    pytest.importorskip(compare.LIBRARIES[name][0], reason='needs pip install -e ".[bench]"')
    assert compare.error(TINY, compare.LOOPS[name]) < EXACT
    assert compare.seconds(TINY, compare.LOOPS[name]) > 0


def test_the_record_is_of_the_libraries_whose_errors_stand_beside_its_times():
    beside = json.loads(read("measurements/side_by_side.json"))["versions"]
    assert recorded["versions"] == {name: number.partition("+")[0] for name, number in beside.items()}


def test_the_sites_table_is_the_record():
    text = compare.PAGE.read_text(encoding="utf-8")
    assert compare.on_the_site(text, recorded) == text
    assert len(re.findall(r"\d\.\d\d \(\d\.\d\d to \d\.\d\d\)", text)) >= 4 * len(OWN)
