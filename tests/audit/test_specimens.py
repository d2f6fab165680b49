"""The auditor finds every buggy loop of the zoo under its rule, and no error in the fixed ones."""

import inspect
from functools import cache

import pytest

from course_utils.zoo import ZOO
from gradaudit import audit
from gradaudit.rules.rule import ERROR

pytestmark = pytest.mark.filterwarnings("ignore:Detected call")


@cache
def findings(name):
    """What the auditor finds in a buggy loop under its rule."""
    with audit() as report:
        ZOO[name].buggy()
    return [finding for finding in report.findings if finding.rule == ZOO[name].rule]


@pytest.mark.parametrize("name", ZOO)
def test_a_buggy_loop_is_found_under_its_rule_at_a_line_of_its_own(name):
    assert ZOO[name].level in {finding.level for finding in findings(name)}
    lines, first = inspect.getsourcelines(ZOO[name].loop)
    for finding in findings(name):
        file, line = finding.where.rsplit(":", 1)
        assert file == inspect.getsourcefile(ZOO[name].loop)
        assert first <= int(line) < first + len(lines)
        assert finding.evidence
        assert finding.fix or finding.level != ERROR


def test_a_loss_is_known_by_its_targets_in_the_first_calls(monkeypatch):
    monkeypatch.setattr("gradaudit.probes.losses._COMPARED", 4)
    with audit() as report:
        ZOO["critic-with-a-window-of-both"].buggy()
    assert report.rules == ["foreign-gradients"]


@pytest.mark.parametrize("name", ZOO)
def test_a_fixed_loop_has_no_error(name):
    with audit() as report:
        ZOO[name].fixed()
    assert [f for f in report.findings if f.level == ERROR or f.rule == ZOO[name].rule] == []
    assert report.history.updates
