"""The report of an audit: words, marked code, the last line, JSON, and `--explain`."""

import ast
import io
import json
import linecache
import re
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import runs
from gradaudit import AuditError, Finding, audit, judging
from gradaudit.callsite import Place
from gradaudit.explain import explain
from gradaudit.formats import as_text, formatted
from gradaudit.lines import cause
from gradaudit.rules import RULES
from gradaudit.text import has_colour, width_of
from runs import data, mean, train, update, with_sgd


def reported(*findings):
    """A report of a correct run, to which these findings are added."""
    with audit() as report:
        train()
    report.findings += findings
    return report


def in_file(monkeypatch, *lines, file="train.py"):
    """A file that only the report's look at the source finds."""
    monkeypatch.setitem(linecache.cache, file, (1, None, [f"{line}\n" for line in lines], file))


def test_the_report_as_text_names_rule_level_location_and_fix():
    with audit() as report:
        train(divide=False)
    text = as_text(report, width=200)
    assert text.startswith("8 backward calls; SGD: 2 updates, windows of 4 (inferred).")
    lines = Path(runs.__file__).read_text(encoding="utf-8").splitlines()
    line = next(k for k, text in enumerate(lines, 1) if "if divide else loss" in text)
    assert f"runs.py:{line}\n  {line - 1} |" in text
    assert f"\n  {line} | (loss / n if divide else loss).backward()\n" in text
    assert "\n  The mean loss of each of 4 micro-batches counts in full, so every update is 4 times too large" in text
    assert re.search(r"\n  fix: divide .*\n  more: gradaudit --explain loss-scale\n\n1 error in 2 updates$", text)
    assert repr(report) == str(report)
    assert report.rules == ["loss-scale"]


@pytest.mark.parametrize(
    ("levels", "failure", "last"),
    [
        ([], "", "No error in 2 updates, by 12 of 17 rules"),
        (["error"], "", "1 error in 2 updates"),
        (["error", "error", "undecided"], "", "2 errors in 2 updates"),
        (["undecided", "undecided", "advice"], "", "No error in 2 updates, by 12 of 17 rules; 2 undecided"),
        ([], "it fell", "No error in 2 updates, by 12 of 17 rules, in the part that was watched"),
    ],
)
def test_the_last_line_counts_errors_and_updates(levels, failure, last):
    report = reported(*(Finding(level, "m", where="x.py:1", rule="loss-scale") for level in levels))
    report.history.failure = failure
    assert str(report).splitlines()[-1] == last


def test_what_a_rule_finds_at_one_line_for_many_optimizers_is_said_once_with_a_count():
    with audit() as report:
        train()
        for _ in range(3):
            train(divide=False)
    (finding,) = report.findings
    assert (finding.rule, finding.level, finding.times) == ("loss-scale", "error", 3)
    assert "\n  SGD 2: the mean loss" in str(report)
    assert report.sentence(finding).endswith("; also 2 more times, for other optimizers")


def test_what_a_rule_finds_twice_at_one_line_is_said_twice_below_its_code(monkeypatch):
    one = Finding("error", "m", fix="f", where="x.py:1", optimizer="SGD", rule="clip-timing")
    another = replace(one, message="another", fix="g")
    assert judging._grouped([one, another]) == [one, another]
    assert judging._grouped([one, replace(one, optimizer="Adam")]) == [replace(one, times=2)]
    for other in ({"where": "x.py:2"}, {"rule": "loss-scale"}, {"level": "undecided"}, {"fix": "g"}):
        assert len(judging._grouped([one, replace(one, optimizer="Adam", **other)])) == 2
    in_file(monkeypatch, "clip()", file="x.py")
    _, group, last = str(reported(one, another)).split("\n\n")
    assert last == "2 errors in 2 updates"
    head, code = "ERROR clip-timing  x.py:1", "  1 | clip()\n    | ^^^^^^"
    assert group == f"{head}\n{code}\n  M\n  fix: f\n  Another\n  fix: g\n  more: gradaudit --explain clip-timing"


def test_the_report_as_json_has_the_keys_that_are_promised():
    with audit() as report:
        train(divide=False)
    result = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert result.keys() == {"findings", "window", "failure", "judged", "not_judged", "unseen"}
    assert result["window"] == {"SGD": 4}
    assert result["not_judged"]["scaler-timing"] == "no GradScaler made a step"
    (finding,) = result["findings"]
    assert finding.keys() == {"rule", "level", "message", "evidence", "fix", "where", "times", "line", "column"}


def test_other_tools_get_the_cell_and_no_temporary_file(monkeypatch):
    in_file(monkeypatch, "    step()", file="/tmp/ipykernel_8/90.py")
    report = reported(Finding("advice", "50% is\nlost", where="/tmp/ipykernel_8/90.py:1", rule="loss-scale"))
    annotation = "::notice file=notebook cell,line=1,col=5,title=gradaudit loss-scale::50%25 is%0Alost\n"
    assert formatted(report, "github").startswith(annotation)
    assert "ADVICE loss-scale  notebook cell, line 1\n  1 | step()\n" in str(report)
    assert "ipykernel" not in str(report)
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={"/tmp/ipykernel_8/90.py": 3}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    (finding,) = report.as_dict()["findings"]
    assert (finding["cell"], finding["where"], finding["line"], finding["column"]) == ("cell 3", "cell 3, line 1", 1, 5)


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


# The code, with a mark


@pytest.mark.parametrize(
    ("rule", "line", "marked"),
    [
        ("loss-scale", "loss = loss / accum_iter  # / 2", "/ accum_iter"),
        ("loss-scale", "loss /= 4  # each", "loss /= 4"),
        ("loss-scale", "größe = criterion(ähnlich, y) / n", "/ n"),
        ("loss-scale", "loss = criterion(model(x / 255), y)", "loss = criterion(model(x / 255), y)"),
        ("leftover-gradients", "if (i + 1) % n == 0:", "if (i + 1) % n == 0:"),
        ("stale-gradients", "if last: optimizer.step()", "optimizer.step()"),
    ],
)
def test_the_mark_is_on_the_division_or_on_the_statement(rule, line, marked, monkeypatch):
    in_file(monkeypatch, line, *(["    pass"] if line.endswith(":") else []))
    number, start, end = cause("train.py:1", rule)
    assert (number, line[start:end]) == (1, marked)


STATEMENT = ("for x in data:", "    loss = criterion(", "        model(x),", "        y,", "    ) / n", "", "    go()")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (1, ["1 | for x in data:", "  | ^^^^^^^^^^^^^^", "2 |     loss = criterion("]),
        (2, ["3 |     model(x),", "4 |     y,", "5 | ) / n", "  |   ^^^", "7 | go()"]),
        (7, ["5 | ) / n", "7 | go()", "  | ^^^^"]),
        (9, []),
    ],
)
def test_at_most_five_lines_are_shown_around_the_mark(line, shown, monkeypatch):
    in_file(monkeypatch, *STATEMENT)
    text = as_text(reported(Finding("error", "m", where=Place(f"train.py:{line}"), rule="loss-scale")), 80)
    code = [each[2:] for each in text.splitlines() if re.match(r" +\d* \|", each)]
    assert code[-5:] == shown
    assert len(code) <= 6


def test_a_line_that_is_cut_keeps_what_is_marked_and_whole_words(monkeypatch):
    in_file(monkeypatch, "loss = scale * criterion(model(inputs), targets) / accumulation_steps")
    report = reported(Finding("error", "m", where=Place("train.py:1"), rule="loss-scale"))
    code, mark = as_text(report, 52).split("\n\n")[1].splitlines()[-4:-2]
    assert code == "  1 | ... (inputs), targets) / accumulation_steps"
    assert code[mark.index("^") :][: mark.count("^")] == "/ accumulation_steps"


# In a terminal


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


@pytest.mark.parametrize("width", [40, 80])
def test_no_line_is_wider_than_asked_and_no_word_is_broken(width, many):
    text = as_text(many, width)
    too_wide = [line for line in text.splitlines() if len(line) > width]
    assert all(len(line.split()) == 1 for line in too_wide), too_wide  # a path has no place where it could be broken
    assert set(re.findall(r"\w+", text)) <= set(re.findall(r"\w+", as_text(many, 500)))
    assert "\n  fix: " in text
    assert width > 60 or "\n       " in text  # under the first word of the fix


def test_a_terminal_obeys_no_character_of_a_message(monkeypatch):
    in_file(monkeypatch, "go('\033[2J')", file="x\033c.py")
    red = Finding("error", "the \033[31mred\033[0m one\a", fix="a\tb\u202e", where=Place("x\033c.py:1"), rule="rule")
    text = as_text(reported(red), 80)
    assert not re.search(r"[^\n -~]", text)
    assert r"\x1b[31mred\x1b[0m one\x07" in text


def test_colours_and_the_width_are_for_terminals_alone_and_change_no_word(many, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert (width_of(Terminal()), has_colour(Terminal())) == (50, True)
    assert (width_of(io.StringIO()), has_colour(io.StringIO())) == (88, False)
    assert str(many) == as_text(many, 88)
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as refused:
            refused.setenv(name, value)
            assert not has_colour(Terminal())
    painted = as_text(many, 80, colour=True)
    assert "\033[1;31mERROR loss-scale\033[0m" in painted
    assert re.sub(r"\033\[[\d;]*m", "", painted) == as_text(many, 80)


# Explanations


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_explained_with_wrong_and_correct_lines(name):
    rule = RULES[name]
    text = explain(name, 80)
    words = " ".join(text.split())
    for part in (rule.symptom, rule.cause, rule.fix, rule.wrong, rule.correct, *rule.reported):
        assert part
        assert " ".join(part.split()) in words
    assert ast.dump(ast.parse(rule.wrong)) != ast.dump(ast.parse(rule.correct))
    assert max(len(line) for line in text.splitlines() if "https://" not in line) <= 80
    assert f"{name} {rule.symptom}" in " ".join(explain(None, 80).split())  # the list of rules


LOSS = "loss = sum(criterion(model(x), y) for x, y in window) / len(window)"
OF_WINDOWS = {  # rules whose lines stand in a loop over windows, and what stands around them there
    "empty-step": f"{LOSS}\n{{}}",
    "loss-scale": "{}\noptimizer.zero_grad()",
    "token-weights": "{}\noptimizer.step()\noptimizer.zero_grad()",
    "clip-timing": "{}\noptimizer.zero_grad()",
    "scaler-timing": "{}\noptimizer.zero_grad()",
}
OF_LOADERS = "stale-gradients", "discarded-gradients", "leftover-gradients", "irregular-window", "scheduler-cadence"


@pytest.mark.parametrize("name", [*OF_LOADERS, *OF_WINDOWS])
@pytest.mark.parametrize("kind", ["wrong", "correct"])
def test_the_wrong_lines_are_an_error_of_their_rule_and_the_correct_ones_none(name, kind):
    model, optimizer = with_sgd()
    names = {
        "model": model,
        "optimizer": optimizer,
        "criterion": nn.CrossEntropyLoss(),
        "loader": data(10 if name == "leftover-gradients" else 12, 4),
        "n": 4,
        "windows": lambda batches, n: [batches[k : k + n] for k in range(0, len(batches), n)],
        "scaler": torch.amp.GradScaler("cpu"),
        "scheduler": torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3),
        "nn": nn,
        "ignore_index": -100,
    }
    if name == "token-weights":
        for _, y in names["loader"][::2]:
            y[1:] = -100
    code = getattr(RULES[name], kind)
    if name in OF_WINDOWS:
        code = f"for window in windows(loader, n):\n{indent(OF_WINDOWS[name].format(code), '    ')}"
    if name in OF_WINDOWS and name != "empty-step":
        code = re.sub(r"    for x, y in window:\n        loss = .*\n", "", code, count=1)
    with audit() as report:
        exec(compile(code, f"{name}.py", "exec"), names)
    if kind == "wrong":
        assert name in report.rules
    else:
        assert report.errors == []


BACKWARD, STEP, ZERO = "loss = mean(model(x), y); loss.backward()", "optimizer.step()", "optimizer.zero_grad()"
AUX = "aux = torch.nn.functional.cross_entropy(model(x), y)"


@pytest.mark.parametrize(
    ("rule", "lines", "marked"),
    [
        ("discarded-gradients", [f"{ZERO}; {BACKWARD}", f"if i % 2: {STEP}"], ZERO),
        ("stale-gradients", [f"{BACKWARD}; {STEP}"], STEP),
        ("unused-loss", [AUX, f"{BACKWARD}; update(optimizer)"], AUX),
    ],
)
def test_of_several_statements_on_a_line_the_one_that_is_meant_is_marked(rule, lines, marked, monkeypatch):
    lines = ["for i, (x, y) in enumerate(data()):", *(f"    {line}" for line in lines)]
    in_file(monkeypatch, *lines)
    model, optimizer = with_sgd()
    names = {"model": model, "optimizer": optimizer, "data": data, "mean": mean, "update": update, "torch": torch}
    with audit() as report:
        exec(compile("\n".join(lines), "train.py", "exec"), names)
    (finding,) = (finding for finding in report.findings if finding.rule == rule)
    line, start, end = cause(finding.where, rule)
    assert lines[line - 1][start:end] == marked
