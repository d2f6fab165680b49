"""The table of what is exact."""

import re

import pytest

from course_utils import what_is_exact
from course_utils.ask import decisions

NAMES = {name for row in decisions.ROWS for text in row for found in re.findall(r"{(.+?)}", text)
         for name in found.split(" + ")}  # fmt: skip


@pytest.fixture
def shown(monkeypatch):
    outputs = []
    monkeypatch.setattr(decisions.display, "_display", outputs.append)
    return outputs


def test_it_shows_what_was_measured_and_the_worst_of_several(shown):
    what_is_exact({name: 0.0 for name in NAMES} | {"RMSNorm": 0.123, "one size": 2e-16})
    rows = [line.split(" | ") for line in shown[0]["text/plain"].splitlines()[1:]]
    assert {len(row) for row in rows} == {len(decisions.HEADER)}
    said = {row[0]: row[1] for row in rows}
    assert said["micro-batches of one size"] == "yes"
    assert said["LayerNorm, RMSNorm, GroupNorm"] == "no, 12.3% off"
    assert "{" not in shown[0]["text/plain"]
    assert shown[0]["text/html"].count("<tr ") == len(rows)


def test_what_was_not_measured_is_not_shown(shown):
    with pytest.raises(KeyError, match="one size"):
        what_is_exact({})
    assert not shown
