"""What the auditor says of each program of the table: no error in a correct one, and what it asks is listed."""

import guards  # noqa: F401
import pytest

import correct_programs  # noqa: F401
from gradaudit import audit
from table import PROGRAMS


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("program", "findings", "window"), PROGRAMS)
def test_a_program_is_judged_as_the_table_says(program, findings, window):
    with audit(window=window) as report:
        program()
    assert sorted(f"{finding.rule} {finding.level}" for finding in report.findings) == findings
    assert report.history.calls or report.history.updates_made
    assert not report.history.failed_rules
    assert not any(finding.fix for finding in report.findings if finding.level == "undecided")
