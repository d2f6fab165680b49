"""The report of an audit: as text, and as JSON."""

import linecache
import re
import sys
from collections.abc import Collection

from gradaudit.callsite import cell_of, short
from gradaudit.formats import as_text, marked
from gradaudit.history import AuditedLedger, History, Kept, count_noun
from gradaudit.rules import RULES
from gradaudit.rules.rule import ERROR, UNDECIDED, Finding
from gradaudit.text import width_of

_NAMED = 6  # optimizers in a summary, at most
_ALLOWS = re.compile(r"#\s*gradaudit:\s*ignore\[([\w\s,-]+)\]")  # a comment on a finding's line


class Report:
    """What an audit found, complete when the audit has ended.

    Attributes:
        findings: All findings, errors first.
        history: What was observed.
        ignored: How many findings were left out, as the user asked for.
    """

    def __init__(self, history: History):
        self.history = history
        self.findings: list[Finding] = []
        self.ignored = 0

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
        history, clauses = self.history, []
        if not history.updates_made:
            clauses.append(f"no {'' if history.calls.total else 'backward call and no '}optimizer step was seen")
            engines = sorted({"deepspeed", "megatron"} & sys.modules.keys())
            if engines:
                clauses.append(f"{' and '.join(engines)} keeps gradients in buffers of its own, which aren't followed")
            if history.processes:
                clauses.append("the script started other processes, which aren't watched")
            if history.grads and not history.calls.total:
                clauses.append(
                    "the script took gradients with torch.autograd.grad or torch.func, which aren't followed"
                )
        ledgers = [each for each in history.stepped if not (each.taken or all(u.known for u in each.updates))]
        if ledgers:
            found = [update.known for ledger in ledgers for update in ledger.updates]
            clauses.append(
                f"in {found.count(False):,} of {count_noun(len(found), 'update')} of {_names(ledgers)}, the gradients "
                "came from no backward call that was seen, as with torch.autograd.grad, torch.func or a copy of the "
                "model"
            )
        if moved := [ledger for ledger in history.ledgers if ledger.moved_unseen]:
            clauses.append(
                f"the weights of {_names(moved)} changed without a step that can be seen, as in torch.compile "
                "(TORCH_COMPILE_DISABLE=1 turns it off) or by hand"
            )
        return clauses

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

    def leave_out(self, rules: Collection[str]) -> None:
        """Drops what these rules found, and what a comment on its line allows."""
        kept = [finding for finding in self.findings if finding.rule not in rules and not _is_allowed(finding)]
        self.ignored += len(self.findings) - len(kept)
        self.findings = kept

    def summary(self) -> str:
        """What was seen, which windows were inferred from it, what wasn't, and whether the verdicts are certain."""
        history = self.history
        text = count_noun(history.calls.total, "backward call")
        stepped = history.stepped
        places = {each: f" ({short(each.made_at)})" for each in stepped if each.made_at and len(stepped) > 1}
        parts = [
            f"{each.name}{places.get(each, '')}: {count_noun(each.made, 'update')}, {self._windows(each)}"
            for each in stepped
        ]
        parts[_NAMED:] = [f"and {count_noun(len(parts) - _NAMED, 'more optimizer')}"] * (len(parts) > _NAMED)
        text += f"; {'; '.join(parts)}." if stepped else " and no optimizer steps were seen."
        if any(ledger.updates.dropped for ledger in history.ledgers):
            text += f" Judged by the first and the last {Kept.half:,} updates."
        if history.overlapping:
            text += " Backward calls of several threads overlapped, so nothing is certain."
        if self.judged and self.unseen:
            text += f" Not seen: {'; '.join(self.unseen)}."
        if history.failure:
            return (
                f"{text} The audit ended there, before the script did, because the auditor itself failed "
                f"({self.failure}). What came later wasn't judged, so nothing is certain; please report this."
            )
        failed = f" The auditor itself failed, and its other rules were judged ({self.failure})."
        return text + failed * bool(self.failure)

    def _windows(self, ledger: AuditedLedger) -> str:
        if not any(update.known for update in ledger.updates):
            return "windows unknown"
        declared = self.history.declared_for(ledger)
        how = declared[0] if declared else "inferred"
        size = self.history.size(ledger)
        return f"windows of {size} ({how})" if size else "without a gradient"

    def conclusion(self) -> str:
        """The last line: how many errors there are in how many updates, or why nothing could be judged."""
        history, errors = self.history, len(self.errors)
        if not self.judged and not history.failure:
            return f"Could not judge: {'; '.join(self.unseen)}."
        ignored = f"; {self.ignored} ignored" * bool(self.ignored)
        if errors:
            return f"{count_noun(errors, 'error')} in {self._steps()}{ignored}"
        parts = {
            ", in the part that was watched": history.failure,
            ", by the other rules": self.failure,
            ", in what was seen": self.unseen,
        }
        where = next((words for words, missing in parts.items() if missing), "")
        undecided = sum(finding.level == UNDECIDED for finding in self.findings)
        judged = f"by {len(RULES) - len(history.not_judged)} of {len(RULES)} rules"
        return f"No error in {self._steps()}, {judged}{where}{f'; {undecided} undecided' * bool(undecided)}{ignored}"

    def _steps(self) -> str:
        """What was judged: the updates, or backward calls without any."""
        made = self.history.updates_made
        return count_noun(made, "update") if made else count_noun(self.history.calls.total, "backward call")

    def as_dict(self) -> dict:
        """What the command line writes as JSON, except for the script's exit status."""
        keys = ("rule", "level", "message", "evidence", "fix", "where", "times")
        return {
            "findings": [
                {key: getattr(finding, key) for key in keys} | {"message": self.sentence(finding)} | _place(finding)
                for finding in self.findings
            ],
            "window": {ledger.name: self.history.size(ledger) for ledger in self.history.stepped},
            "failure": self.failure,
            "judged": self.judged,
            "not_judged": self.history.not_judged,
            "unseen": self.unseen,
        }

    def __str__(self) -> str:
        return as_text(self, width_of(sys.stdout))

    __repr__ = __str__  # what a notebook shows of it

    def sentence(self, finding: Finding) -> str:
        """The message as a sentence; it begins with the optimizer's name if there are several."""
        text, more = "; ".join([finding.message, *finding.reasons]), finding.times - 1
        if len(self.history.stepped) > 1 and finding.optimizer and f" of {finding.optimizer} " not in text:
            text = f"{finding.optimizer}: {text}"
        elif re.match(r"[a-z-]+\b(?![(.])", text):  # not a function's name
            text = text[:1].upper() + text[1:]
        return f"{text}; also {count_noun(more, 'more time')}, for other optimizers" if more else text


def _place(finding: Finding) -> dict:
    """The line and the column, from 1, of the cause; and the cell, whose temporary file nobody could find."""
    (file, _, reached), (_, line, column, _) = finding.where.rpartition(":"), marked(finding)
    place, cell = {"line": line, "column": column} if line else {}, cell_of(file)
    return place | ({"cell": cell, "where": f"{cell}, line {reached}"} if cell else {})


def _is_allowed(finding: Finding) -> bool:
    """By a comment on the line where it is, or on the one that is marked."""
    file, _, line = finding.where.rpartition(":")
    text = linecache.getline(file, marked(finding)[1]) + linecache.getline(file, int(line) if file else 0)
    return finding.rule in re.split(r"[\s,]+", ",".join(_ALLOWS.findall(text)))


def _names(ledgers: list[AuditedLedger]) -> str:
    return ", ".join(ledger.name for ledger in ledgers[:_NAMED]) + ", ..." * (len(ledgers) > _NAMED)


class AuditError(AssertionError):
    """Raised by a strict audit that found errors, or that failed itself or could judge nothing, and so proves nothing.

    Attributes:
        report: The report with all findings.
    """

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report
