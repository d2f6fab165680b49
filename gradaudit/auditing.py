"""`with audit() as report:`, what a user calls."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from gradaudit.judging import judge
from gradaudit.observe.observer import observing
from gradaudit.probes.auditor import Auditor
from gradaudit.report import AuditError, Report


@contextmanager
def audit(
    window: int | None = None, strict: bool = False, ignore: Collection[str] = (), auditor: Auditor | None = None
) -> Iterator[Report]:
    """Watches the training loops that run inside the block.

    Args:
        window: The intended number of micro-batches per update. It is inferred if it is not given.
        strict: Raise `AuditError` at the end of the block if an error was found, if nothing could be judged, or if the
            auditor itself has failed, for use in a test.
        ignore: Rules whose findings are left out, as are those beside a comment `# gradaudit: ignore[rule]`.
        auditor: What writes the history, if it does more than that.

    Yields:
        A `Report`, complete when the block has ended, also by an exception. The auditor's own errors never reach the
        block: the first one ends the audit, with an `ObserverFailure`, which is a warning, and `report.failure` names
        it.

    Raises:
        ValueError: If `window` is not a whole number of 1 or more.
        AuditError: If `strict` and an error was found, nothing could be judged, or the auditor has failed, and the
            block itself raised nothing.
    """
    auditor = auditor or Auditor()
    report = Report(auditor.history)
    if window is not None:
        report.declare_window(window)
    try:
        with observing(auditor):
            yield report
    except BaseException as error:
        auditor.history.failed = not (isinstance(error, SystemExit) and error.code in (None, 0))
        raise
    finally:
        report.findings = judge(auditor.history)
        report.leave_out(ignore)
    if strict and (report.errors or report.failure or not report.judged):
        raise AuditError(report)
