"""The report of an audit: as text, as HTML in a notebook, as JSON."""

import sys
from html import escape

from gradaudit.callsite import short, source
from gradaudit.compare.rules import ERROR
from gradaudit.history import History, Kept, count_noun
from gradaudit.judging import Finding
from gradaudit.text import as_text, width_of
from gradaudit.unseen import unseen


class Report:
    """What an audit found, complete when the audit has ended.

    Attributes:
        findings: All findings, errors first.
        history: What was observed.
    """

    def __init__(self, history: History):
        self.history = history
        self.findings: list[Finding] = []

    @property
    def errors(self) -> list[Finding]:
        """The findings that are bugs for certain."""
        return [finding for finding in self.findings if finding.level == ERROR]

    @property
    def rules(self) -> list[str]:
        """The names of the rules that found an error."""
        return list(dict.fromkeys(finding.rule for finding in self.errors))

    @property
    def failure(self) -> str | None:
        """What went wrong in the auditor itself, and where; None if nothing did."""
        failures = [f"rule {name}: {failure}" for name, failure in self.history.failed_rules.items()]
        return "; ".join([self.history.failure] * bool(self.history.failure) + failures) or None

    @property
    def unseen(self) -> list[str]:
        """What the auditor knows that it didn't see, in clauses."""
        return unseen(self.history)

    @property
    def judged(self) -> bool:
        """Was there anything to judge? An error, or an update of which it is known where its gradients came from."""
        return bool(self.errors) or any(update.known for update in self.history.updates)

    def declare_window(self, n: int) -> None:
        """Says how many micro-batches a window is meant to hold from the next update on.

        Args:
            n: Micro-batches per update.

        Raises:
            ValueError: If `n` is not a whole number of 1 or more.
        """
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(f"a window holds a whole number of micro-batches, 1 or more, got {n!r}")
        self.history.declared.append((self.history.updates_made, n))

    def summary(self) -> str:
        """What was seen, which windows were inferred from it, what wasn't, and whether the verdicts are certain."""
        missing = f"Not seen: {'; '.join(self.unseen)}." if self.judged and self.unseen else ""
        return " ".join(filter(None, [self._seen(), missing, self._failed()]))

    def conclusion(self) -> str:
        """What is said beside the findings: that there are none, or that nothing could be judged. It may be empty."""
        if not self.judged and not self.history.failure:
            return f"Could not judge: {'; '.join(self.unseen)}."
        parts = {
            "in the part that was watched": self.history.failure,
            "by the other rules": self.failure,
            "in what was seen": self.unseen,
        }
        where = next((words for words, missing in parts.items() if missing), "")
        return "" if self.findings else f"Nothing was found {where}".strip() + "."

    def _failed(self) -> str:
        if self.history.failure:
            return (
                f"The audit ended there, before the script did, because the auditor itself failed ({self.failure}). "
                "What came later wasn't judged, so nothing is certain; please report this."
            )
        return f"The auditor itself failed, and its other rules were judged ({self.failure})." if self.failure else ""

    def _seen(self) -> str:
        history = self.history
        calls = count_noun(history.calls.total, "backward call")
        if not history.updates_made:
            return f"{calls} and no optimizer steps were seen."
        how = "declared" if history.declared else "inferred"
        stepped = history.stepped
        parts = [
            f"{record.name}: {count_noun(record.made, 'update')}, windows "
            + (f"of {history.size(record)} ({how})" if any(update.known for update in record.updates) else "unknown")
            for record in stepped[:6]
        ]
        parts += [f"and {count_noun(len(stepped) - 6, 'more optimizer')}"] if len(stepped) > 6 else []
        text = f"{calls}; {'; '.join(parts)}."
        if history.dropped:
            text += f" Judged by the first and the last {Kept.half:,} updates."
        if history.overlapping:
            text += " Backward calls of several threads overlapped, so nothing is certain."
        return text

    def as_dict(self) -> dict:
        """What the command line writes as JSON, except for the script's exit status."""
        keys = ("rule", "level", "message", "evidence", "fix", "where", "times")
        return {
            "findings": [
                {key: getattr(finding, key) for key in keys} | {"message": self.sentence(finding)}
                for finding in self.findings
            ],
            "window": {record.name: self.history.size(record) for record in self.history.stepped},
            "failure": self.failure,
            "judged": self.judged,
            "unseen": self.unseen,
        }

    def __str__(self) -> str:
        return as_text(self, width_of(sys.stdout))

    def __repr__(self) -> str:
        counts = f"{count_noun(len(self.errors), 'error')} among {count_noun(len(self.findings), 'finding')}"
        return f"<Report of {counts}{'' if self.judged else ', nothing judged'}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align:left;vertical-align:top"><b>{escape(finding.rule)}</b><br>{finding.level}</td>'
            f'<td style="text-align:left">{escape(self.sentence(finding))}<br>'
            f"{f'<i>fix:</i> {escape(finding.fix)}<br>' if finding.fix else ''}"
            f"<code>{escape(f'{short(finding.where)}  {source(finding.where)}'.strip())}</code></td></tr>"
            for finding in self.findings
        )
        found = f"<table>{rows}</table>" if rows else ""
        end = f"<p>{escape(self.conclusion())}</p>" if self.conclusion() else ""
        return f"<p>{escape(self.summary())}</p>{found}{end}"

    def sentence(self, finding: Finding) -> str:
        """The message as a sentence; it begins with the optimizer's name if there are several."""
        text, more = "; ".join([finding.message, *finding.doubts]), finding.times - 1
        several = len(self.history.stepped) > 1 and finding.optimizer
        text = f"{finding.optimizer}: {text}" if several else text[:1].upper() + text[1:]
        return f"{text}; also {count_noun(more, 'more time')}, for other optimizers" if more else text


class AuditError(AssertionError):
    """Raised by a strict audit that found errors, or that failed itself or could judge nothing, and so proves nothing.

    Attributes:
        report: The report with all findings.
    """

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report
