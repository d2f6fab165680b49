"""record() and the audit know the same optimizers and the same windows, whatever the loop is like."""

import pytest
from agreement import HARD, LOOPS, windows

import exhaustive

pytestmark = pytest.mark.filterwarnings("ignore")

EXPECTED = {
    "inherited_step": {"CallsInheritedStep": [2, 2, 2]},
    "dropped_and_created_again": {"SGD": [2, 2, 2], "SGD 2": [3, 3, 3]},
    "wrapper": {"Adam": [2, 2, 2]},
    "closures": {
        "SGD": [2, 2, 2],
        "SGD 2": [2, 4, 6],
        "CallsInheritedStep": [2, 2, 2],
        "CallsInheritedStep 2": [2, 4, 6],
        "LBFGS": [2, 2, 2],
    },
}


@pytest.mark.parametrize("name", exhaustive.mark(LOOPS, but=[*HARD, *list(LOOPS)[::4]]))
def test_record_and_the_audit_agree(name):
    """Both watch the same run. Of the loops that are hard to see through, the windows are known as well."""
    recorded, audited = windows(LOOPS[name])
    assert recorded == audited != {}
    expected = EXPECTED.get(name, {})
    assert {lane: recorded[lane] for lane in expected} == expected


def test_the_windows_of_every_hard_loop_are_known():
    assert EXPECTED.keys() == HARD.keys()
