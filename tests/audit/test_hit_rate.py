"""How often the auditor is right about loops whose bugs are known."""

from collections import Counter

import pytest

import exhaustive
from gradaudit import audit
from unseen import unseen_loops

pytestmark = pytest.mark.filterwarnings("ignore:Detected call")


@pytest.mark.parametrize(("seed", "loops"), exhaustive.mark([(0, 8), (1, 160), (2, 160)], but=[(0, 8)]))
def test_no_loop_is_accused_wrongly_and_what_has_a_rule_is_seldom_missed(seed, loops):
    said, missed = Counter(), []
    for loop in unseen_loops(correct=loops // 4, buggy=loops, seed=seed):
        with audit(window=loop.n) as report:
            loop()
        expected = {rule for bug in loop.planted for rule in (bug.rule, *bug.also)}
        assert set(report.rules) <= expected, loop.source
        level_of = {finding.rule: finding.level for finding in reversed(report.findings)}  # errors come first
        said.update(level_of.get(bug.rule, "missed") for bug in loop.planted)
        missed += [bug.kind for bug in loop.planted if bug.rule and bug.rule not in level_of]
    assert len(missed) <= 0.03 * said.total(), missed  # as the mean of a mean whose scale is not read
    assert said["error"] > 0.8 * said.total()
