"""The auditor: watches any training script, unchanged, and names its zeroing and accumulation bugs.

`with audit() as report:` in Python, `python -m course_utils.audit script.py` on the command line.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from course_utils.audit.report import AuditError, Report
from course_utils.audit.rules import Finding, judge
from course_utils.audit.watch import Watcher

__all__ = ["AuditError", "Finding", "Report", "audit"]


@contextmanager
def audit(window: int | None = None, strict: bool = False) -> Iterator[Report]:
    """Watches the training loops that run inside the block.

    **Arguments:** `window`: the intended number of micro-batches per update, inferred if it is not given; `strict`:
    raise `AuditError` at the end of the block if an error was found, for use in a test.

    **Yields:** a `Report`, complete when the block has ended, also by an exception.
    """
    if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 1):
        raise ValueError(f"window must be a whole number of micro-batches per update, 1 or more, got {window!r}")
    watcher = Watcher(window)
    report = Report(watcher.history)
    failed = True
    try:
        watcher.attach()
        yield report
        failed = False
    finally:
        watcher.detach()
        report.findings = judge(watcher.history)
    if strict and not failed and report.errors:
        raise AuditError(report)
