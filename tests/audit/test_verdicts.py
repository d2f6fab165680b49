"""What the auditor says of each program of the table."""

import advice  # noqa: F401
import by_hand  # noqa: F401
import guards  # noqa: F401
import held_graphs  # noqa: F401
import pytest
import reused  # noqa: F401
from table import PROGRAMS

from gradaudit import audit


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("program", "rule", "levels", "window"), PROGRAMS)
def test_a_program_is_judged_as_the_table_says(program, rule, levels, window):
    with audit(window=window) as report:
        program()
    assert tuple(finding.level for finding in report.findings if not rule or finding.rule == rule) == levels
    assert not report.history.failed_rules
