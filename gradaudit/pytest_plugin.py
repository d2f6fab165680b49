"""A pytest fixture: a test that trains with it fails if the auditor finds an error, or nothing that it could judge.

In `conftest.py`:

    pytest_plugins = ["gradaudit.pytest_plugin"]

In a test:

    def test_training(audited):
        audited.declare_window(4)    # micro-batches per update; inferred if left out
        train()

    @pytest.mark.allow_findings("leftover-gradients")
    def test_training_drops_the_tail(audited): ...

It isn't an entry point, because pytest would then import torch for every project in the environment.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from gradaudit.auditing import Report, audit
from gradaudit.rules import RULES
from gradaudit.text import did_you_mean

_AUDIT = pytest.StashKey[tuple[AbstractContextManager, Report]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "allow_findings(*rules): errors under these rules don't fail a test that uses the fixture audited"
    )


@pytest.fixture
def audited(request: pytest.FixtureRequest) -> Iterator[Report]:
    """The report of an audit that watches until the test function ends, and fails the test if it finds an error.

    It also fails a test in which it could judge nothing, as where nothing was trained: it would pass whatever it does.
    If the test fails for another reason, the report is shown with the failure. If the auditor itself fails, pytest
    shows its warning, and no error is claimed of a run that was watched in part: use `audit(strict=True)` where that
    must not pass.
    """
    for name in _allowed(request.node) - set(RULES):
        pytest.fail(f"allow_findings: there is no rule {name}; {did_you_mean(name, RULES)}", False)
    watching = audit()
    report = watching.__enter__()
    request.node.stash[_AUDIT] = watching, report
    yield report
    _end(request.node)  # if the test function was not called, because another fixture has failed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Ends the audit with the test function: an error in a fixture's teardown wouldn't count as a failed test."""
    try:
        result = yield
    except BaseException:
        report = _end(item)
        if report:
            item.add_report_section("call", "audit", str(report))
        raise
    report = _end(item)
    if report and (set(report.rules) - _allowed(item) or not (report.judged or report.failure)):
        pytest.fail(str(report), pytrace=False)
    return result


def _end(item: pytest.Item) -> Report | None:
    """Ends the item's audit, if it has one that hasn't ended."""
    watching, report = item.stash.get(_AUDIT, (None, None))
    if watching is not None:
        del item.stash[_AUDIT]
        watching.__exit__(*sys.exc_info())
    return report


def _allowed(item: pytest.Item) -> set[str]:
    return {rule for mark in item.iter_markers("allow_findings") for rule in mark.args}
