"""The report of an audit: as text, as HTML, as JSON, as a ledger, as an exception."""

import json
from pathlib import Path

import pytest
import runs
from runs import train

from course_utils.audit import AuditError, Finding, audit
from course_utils.audit.text import as_text

pytestmark = pytest.mark.usefixtures("quick_scans")


def test_the_report_as_text_names_rule_level_location_and_fix():
    with audit() as report:
        train(divide=False)
    text = as_text(report, width=200)
    assert text.startswith("8 backward calls; SGD: 2 updates of 4 micro-batches (inferred).")
    lines = Path(runs.__file__).read_text(encoding="utf-8").splitlines()
    line = next(k for k, text in enumerate(lines, 1) if "if divide else loss" in text)
    assert "\nERROR loss-scale  " in text
    assert f"runs.py:{line}\n    (loss / n if divide else loss).backward()\n  The mean" in text
    assert "4.0 times too large" in text
    assert "\n  fix: divide each loss" in text
    assert repr(report) == "<Report of 1 error among 1 finding>"
    assert report.rules == ["loss-scale"]


def test_a_file_below_the_working_directory_is_named_from_there(monkeypatch):
    with audit() as report:
        train(divide=False)
    monkeypatch.chdir(Path(runs.__file__).parent)
    assert "\nERROR loss-scale  runs.py:" in str(report)
    monkeypatch.chdir("/")
    assert f"\nERROR loss-scale  {Path(runs.__file__).relative_to('/')}:" in str(report)


def test_a_report_with_nothing_in_it():
    with audit() as report:
        pass
    assert str(report) == "0 backward calls and no optimizer steps were seen.\n\nNothing was found."
    with audit() as report:
        train()
    assert "Nothing was found." in str(report)
    assert "Nothing was found." in report._repr_html_()


def test_with_several_optimizers_a_message_begins_with_the_name_of_its_own():
    with audit() as report:
        train()
        train(divide=False)
    assert [f["message"][:10] for f in report.as_dict()["findings"]] == ["SGD 2: the"]
    assert "\n  SGD 2: the mean loss" in str(report)


def test_the_report_as_html_is_escaped():
    with audit() as report:
        train(divide=False)
    report.findings.append(Finding("advice", "a < b", fix="<script>", where="x.py:1", rule="rule"))
    html = report._repr_html_()
    assert "<b>loss-scale</b>" in html
    assert "a &lt; b" in html.lower()
    assert "<script>" not in html


def test_the_report_as_json_has_the_keys_that_are_promised():
    with audit() as report:
        train(divide=False)
    result = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert result["window"] == {"SGD": 4}
    (finding,) = result["findings"]
    assert finding.keys() == {"rule", "level", "message", "evidence", "fix", "where"}


def test_the_ledger_marks_the_finding_at_its_update():
    with audit() as report:
        train(n=1, zero=False)
    assert "stale-gradients" in texts(report.ledger())
    events = report.history.trace.events
    second_step = [k for k, event in enumerate(events) if event.kind == "step"][1]
    assert report._event_of(report.findings[0]) == second_step


def test_the_ledger_of_a_long_run_shows_the_part_with_the_first_finding():
    with audit() as report:
        train(n=1, count=50)
        train(n=1, zero=False, count=3)
    (finding,) = report.findings
    assert report._event_of(finding) > 100
    assert "stale-gradients" in texts(report.ledger())


def texts(figure):
    return [text.get_text() for axis in figure.axes for text in axis.texts]


def test_strict_raises_with_the_report():
    with pytest.raises(AuditError, match="loss-scale") as caught, audit(strict=True) as report:
        train(divide=False)
    assert caught.value.report is report
    with audit(strict=True):
        train()
    with pytest.raises(ZeroDivisionError), audit(strict=True):  # noqa: PT012
        train(divide=False)
        1 / 0  # noqa: B018
