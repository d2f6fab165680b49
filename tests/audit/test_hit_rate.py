"""How often the auditor is right about loops whose bugs are known: the counting, and what it counts."""

from collections import Counter
from functools import partial

import pytest

import exhaustive
import hit_rate
from unseen import EDITS, unseen_loops

pytestmark = pytest.mark.filterwarnings("ignore:Detected call")
NO_RULE = {edit.kind for edit in EDITS if not edit.rule}


@pytest.mark.parametrize(("seed", "loops"), exhaustive.mark([(0, 8), (1, 160), (2, 160)], but=[(0, 8)]))
def test_no_loop_is_accused_wrongly_and_what_has_a_rule_is_seldom_missed(seed, loops):
    found = hit_rate.hit_rate(unseen_loops(correct=loops // 4, buggy=loops, seed=seed))
    assert found.false_errors == []
    missed = sum(each["missed"] for kind, each in found.by_kind.items() if kind not in NO_RULE)
    assert missed <= 0.03 * found.total.total()  # as the mean of a mean whose scale is not read
    assert found.total["error"] > 0.8 * found.total.total()


def test_what_was_not_found_is_missed_and_what_was_not_planted_is_a_false_error():
    broken, correct = unseen_loops(correct=1, buggy=40, seed=0)[1:], unseen_loops(correct=1, buggy=0)[0]
    undivided = next(loop for loop in broken if [bug.kind for bug in loop.planted] == ["never zeroed"])
    accused, silent = partial(undivided), partial(correct)
    accused.planted, accused.n, silent.planted, silent.n = (), undivided.n, undivided.planted, correct.n
    found = hit_rate.hit_rate([accused, silent])
    assert found.false_errors == ["stale-gradients"]
    assert found.by_kind == {"never zeroed": Counter({"missed": 1})}
    assert (found.correct, found.buggy) == (1, 1)
    assert str(found).splitlines()[-1] == "false errors in 1 correct and 1 buggy loops: 1"
