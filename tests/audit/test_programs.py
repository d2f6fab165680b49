"""The auditor finds no error in any correct program."""

import exhaustive
import pytest
from unusual_programs import PROGRAMS

from course_utils.audit import audit

pytestmark = pytest.mark.usefixtures("quick_scans")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", exhaustive.mark(PROGRAMS, but=list(PROGRAMS)[::2]))
def test_there_is_no_error_in_a_correct_program(name):
    with audit() as report:
        PROGRAMS[name].declare = report.declare_window
        PROGRAMS[name]()
    assert report.errors == []
    assert report.history.windows.total >= 3
