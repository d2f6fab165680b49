"""What the command does before a script has ended, as a backward call begins: every step before it is complete."""

import sys
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from math import inf

from gradaudit.formats import concise
from gradaudit.observe.ledger import Call
from gradaudit.probes.auditor import Auditor
from gradaudit.report import Report
from gradaudit.rules import RULES
from gradaudit.rules.rule import ERROR
from gradaudit.text import write

_LASTING = "stale-gradients", "clip-timing", "scaler-timing"  # rules that judge each update by what came before it


class EarlyAuditor(Auditor):
    """An auditor that says the first certain error while the script runs, and may end the script.

    Args:
        limit: After how many updates, of all optimizers, it ends the script, as `sys.exit()` does; None if never.
        ignore: Rules whose errors it doesn't say.

    Attributes:
        has_ended: Whether it has ended the script.
    """

    def __init__(self, limit: int | None = None, ignore: Collection[str] = ()) -> None:
        super().__init__()
        self.limit, self.ignore, self.has_ended = limit or inf, ignore, False
        self.look_at = 8  # updates; then 64, 512, ...

    def backward_begins(self, *args) -> Call:
        made = self.history.updates_made
        if made >= self.look_at and not self.history.overlapping:
            self.look_at *= 8
            with suppress(Exception):  # a rule that fails does so at the end as well, and the report says it
                self._say_first_error()
        if made >= self.limit:
            self.has_ended = True
            raise SystemExit  # goes through the guard, and through the script's `except Exception`
        return super().backward_begins(*args)

    def _say_first_error(self) -> None:
        # what looks like a step by hand may turn out to be none
        report = Report(replace(self.history, ledgers=[each for each in self.history.ledgers if not each.by_hand]))
        found = [replace(each, rule=name) for name in _LASTING for each in RULES[name].find(report.history)]
        # a clip before a backward pass may be of a batch without a loss
        report.findings = [f for f in found if f.level == ERROR and f.evidence.get("after_backward_calls") != 0]
        report.leave_out(self.ignore)
        if report.findings:
            self.look_at = inf
            write(f"\ngradaudit: {concise(report, report.findings[0])}\n", sys.stderr)  # below a progress bar
