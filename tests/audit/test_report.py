"""The report of an audit: as text, as HTML, as JSON, as a ledger, as an exception."""

import io
import json
import linecache
import re
from dataclasses import replace
from pathlib import Path

import pytest
import runs
from matplotlib.backends.backend_agg import FigureCanvasAgg
from runs import train

from course_utils.zoo import ZOO
from gradaudit import AuditError, Finding, audit, rules
from gradaudit.callsite import Place
from gradaudit.explain import explain
from gradaudit.page import as_page
from gradaudit.compare import RULES
from gradaudit.text import as_annotations, as_text, has_colour, lines_of, rule_line, width_of


def test_the_report_as_text_names_rule_level_location_and_fix():
    with audit() as report:
        train(divide=False)
    text = as_text(report, width=200)
    assert text.startswith("8 backward calls; SGD: 2 updates, windows of 4 (inferred).")
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
    assert str(report) == (
        "0 backward calls and no optimizer steps were seen.\n\n"
        "Could not judge: no backward call and no optimizer step was seen."
    )
    assert repr(report) == "<Report of 0 errors among 0 findings, nothing judged>"
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


def test_what_a_rule_finds_at_one_line_for_many_optimizers_is_said_once_with_a_count():
    with audit() as report:
        for _ in range(32):
            train(divide=False)
    (finding,) = report.findings
    assert (finding.rule, finding.level, finding.times) == ("loss-scale", "error", 32)
    assert report.sentence(finding).startswith("SGD: the mean loss")
    assert report.sentence(finding).endswith("; also 31 more times, for other optimizers")
    assert len(str(report).splitlines()) < 20


def test_what_a_rule_finds_twice_for_one_optimizer_or_in_two_lines_is_said_twice():
    one = Finding("error", "m", fix="f", where="x.py:1", lane="SGD", rule="clip-timing")
    assert rules._grouped([one, replace(one, message="another")]) == [one, replace(one, message="another")]
    assert rules._grouped([one, replace(one, lane="Adam")]) == [replace(one, times=2)]
    for other in ({"where": "x.py:2"}, {"rule": "loss-scale"}, {"level": "undecided"}, {"fix": "g"}):
        assert len(rules._grouped([one, replace(one, lane="Adam", **other)])) == 2


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
    assert finding.keys() == {"rule", "level", "message", "evidence", "fix", "where", "times"}


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
    with pytest.raises(AuditError, match="Could not judge"), audit(strict=True):
        train(count=0)
    with pytest.raises(ZeroDivisionError), audit(strict=True):  # noqa: PT012
        train(divide=False)
        1 / 0  # noqa: B018


# As text


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def many():
    """A report with several findings of all levels."""
    with audit() as report:
        train(divide=False)
        train(n=1, zero=False, count=20)
    report.findings.append(Finding("undecided", "nothing is known", fix="look at it", rule="rule"))
    return report


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_asked_and_no_word_is_broken(width, many):
    text = as_text(many, width)
    too_wide = [line for line in text.splitlines() if len(line) > width]
    assert all(len(line.split()) == 1 for line in too_wide), too_wide  # a path has no place where it could be broken
    assert " ".join(text.split()).count("divide each loss by the micro-batches of its window (4)") == 1
    assert "\n  fix: " in text
    assert "\n       " in text  # under the first word of the fix


def test_a_place_that_does_not_fit_beside_the_rule_has_a_line_of_its_own():
    with audit() as report:
        train()
    report.findings.append(Finding("error", "words", fix="less", where=f"{'deep/' * 12}train.py:7", rule="loss-scale"))
    head, place = as_text(report, 60).split("\n\n")[1].splitlines()[:2]
    assert (head, place) == ("ERROR loss-scale", f"    {'deep/' * 12}train.py:7")
    assert "ERROR loss-scale  deep/" in as_text(report, 100)


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("train.py", "train.py"),
        (f"/{'deep/' * 20}train.py", ".../deep/deep/deep/deep/deep/train.py"),
        (f"{'long' * 20}.py", "...glonglonglonglonglonglonglonglong.py"),
        (f"/训练/{'深' * 13}/train.py", f".../{'深' * 13}/train.py"),
        (f"/训练/{'深' * 20}/train.py", ".../train.py"),
        ("a\033[2J.py", "a\\x1b[2J.py"),
    ],
    ids=["short", "deep", "long", "wide", "too wide", "ANSI"],
)
def test_the_rule_line_is_as_wide_as_the_terminal_and_shows_the_end_of_a_path(file, shown):
    line = rule_line("audit of", file, 53)
    assert line.startswith(f"── audit of {shown} ─")
    assert len(line) + line.count("深") == 53


def test_code_that_is_cut_ends_with_a_word(monkeypatch):
    line = "loss = scale * criterion(model(inputs), targets) / len(window)\n"
    monkeypatch.setitem(linecache.cache, "train.py", (len(line), None, [line], "train.py"))
    with audit() as report:
        pass
    report.findings.append(Finding("error", "wrong", fix="do right", where=Place("train.py:1"), rule="rule"))
    assert "\n    loss = scale * ...\n" in as_text(report, 40)
    assert "\n    loss = scale * criterion(model(inputs), ...\n" in as_text(report, 52)
    assert f"\n    {line}" in as_text(report, 70)


def test_a_terminal_obeys_no_character_of_a_message(many):
    many.findings.append(
        Finding("error", "the \033[31mred\033[0m lane\a", fix="a\tb\u202e", where="x\033c.py:1", rule="rule")
    )
    for text in (as_text(many, 80), as_annotations(many).replace("%0A", "")):
        assert not re.search(r"[^\n -~]", text)
        assert r"\x1b[31mred\x1b[0m lane\x07" in text
        assert r"x\x1bc.py" in text


def test_a_formula_stays_on_one_line():
    for width in range(30, 60):
        lines = lines_of("step after every n-th micro-batch, counted from 1: (i + 1) % n == 0, or not", width)
        assert any("(i + 1) % n == 0" in line for line in lines)
        assert max(map(len, lines)) <= width


def test_without_a_terminal_the_text_is_the_same_everywhere(many, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    assert width_of(io.StringIO()) == 88
    assert width_of(Terminal()) == 50
    assert "\033" not in str(many)
    assert str(many) == as_text(many, 88)


def test_a_wide_terminal_is_used_up_to_100_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert width_of(Terminal()) == 100


def test_colours_are_for_terminals_alone_and_change_no_word(many, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert has_colour(Terminal())
    assert not has_colour(io.StringIO())
    painted = as_text(many, 80, colour=True)
    assert "\033[1;31mERROR loss-scale\033[0m" in painted
    assert re.sub(r"\033\[[\d;]*m", "", painted) == as_text(many, 80)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_user_may_ask_for_no_colours(name, value, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    assert not has_colour(Terminal())


def test_a_cell_of_a_notebook_is_named_without_its_file(monkeypatch):
    file = "/run/ipykernel_812/3141592.py"
    monkeypatch.setitem(linecache.cache, file, (20, None, ["x = 1\n", "loss.backward()\n"], file))
    with audit() as report:
        pass
    report.findings.append(Finding("error", "wrong", fix="do right", where=Place(f"{file}:2"), rule="rule"))
    assert "ERROR rule  notebook cell, line 2\n    loss.backward()\n  Wrong\n" in str(report)
    for text in (str(report), report._repr_html_(), as_page(report, "An audit")):
        assert "ipykernel" not in text


# As annotations


def test_annotations_are_escaped_as_github_asks(monkeypatch, tmp_path):
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    with audit() as report:
        pass
    report.findings += [
        Finding("error", "50% of: this, that", fix="a\nb", where=f"{tmp_path}/odd,na:me.py:3", rule="loss-scale"),
        Finding("advice", "hm", fix="wait", where="/elsewhere/x.py:7", rule="batchnorm"),
        Finding("undecided", "eh", fix="think", rule="token-weights"),
    ]
    assert as_annotations(report).splitlines() == [
        "::error file=odd%2Cna%3Ame.py,line=3,title=loss-scale (error)::50%25 of: this, that%0Afix: a%0Ab",
        "::warning file=/elsewhere/x.py,line=7,title=batchnorm (advice)::Hm%0Afix: wait",
        "::notice title=token-weights (undecided)::Eh%0Afix: think",
    ]


# As a page


def test_the_page_needs_nothing_else(many):
    page = as_page(many, "Audit of a <b> & c")
    assert page.startswith("<!DOCTYPE html>")
    assert "<h1>Audit of a &lt;b&gt; &amp; c</h1>" in page
    assert page.count("<section") == len(many.findings)
    assert "<svg" in page
    assert "if divide else loss" in page
    assert not re.search(r"<(script|link|img|iframe)|src=|@import", page)
    assert not re.search(r"url\((?!#)", page)


def test_a_page_without_events_or_findings():
    with audit() as report:
        pass
    page = as_page(report, "Audit of x.py", "Rank 0 of 2. ")
    assert "Rank 0 of 2. 0 backward calls" in page
    assert "Could not judge: no backward call and no optimizer step was seen." in page
    assert "<svg" not in page


# Labels of the ledger


def test_labels_of_the_ledger_do_not_cover_each_other():
    with audit() as report:
        train(n=2, count=6)
    for rule, update in (("irregular-window", 1), ("stale-gradients", 2), ("loss-scale", 3), ("token-weights", 3)):
        report.findings.append(Finding("error", "m", evidence={"update": update}, fix="f", lane="SGD", rule=rule))
    figure = report.ledger()
    FigureCanvasAgg(figure).draw()
    notes = [text for text in figure.axes[0].texts if text.get_bbox_patch()]
    boxes = [text.get_bbox_patch().get_window_extent() for text in notes]
    assert len(boxes) == 3
    assert not any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[:k])
    right = figure.bbox.x1
    assert all(0 <= box.x0 < box.x1 <= right for box in boxes)


# Explanations


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_explained_by_symptom_cause_fix_and_public_bugs(name):
    assert RULES[name].cause.endswith(".")
    assert "\n" not in RULES[name].cause
    text = explain(name, 80)
    words = " ".join(text.split())
    for part in (RULES[name].symptom, RULES[name].cause, RULES[name].fix):
        assert part in words
    assert max(len(line) for line in text.splitlines() if "https://" not in line) <= 80
    for specimen in ZOO.values():
        assert (specimen.url in text) == (specimen.url in [s.url for s in ZOO.values() if s.rule == name])


def test_the_list_of_rules_has_each_with_its_symptom():
    words = " ".join(explain(None, 80).split())
    assert all(f"{name} {rule.symptom}" in words for name, rule in RULES.items())
