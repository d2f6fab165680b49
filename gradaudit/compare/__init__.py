"""Differences between what was observed and the intended windows: which calls an update used, how many, what each counts.

Whether one is meant is not decided here: `doubts` says what speaks for it, and `words` what is said.
"""

from collections.abc import Sequence
from typing import Any

from gradaudit.history import AuditedCall, AuditedRecord, AuditedUpdate


class Difference:
    """What was observed, where a loop over the intended windows does something else.

    Attributes:
        kind: What `words` and `doubts` are about.
        record: The optimizer; None if it is about none in particular.
        where: The line of the cause.
        updates: Those in which it shows, the first one first.
        calls: The backward calls that it is about.
        about: What else doubts ask about.
        fix: What to change, if `words` doesn't know it.
        evidence: The numbers, and other words of the message. `update` says in which update it shows first.
    """

    def __init__(
        self,
        kind: str,
        record: AuditedRecord | None,
        where: str,
        updates: Sequence[AuditedUpdate] = (),
        calls: Sequence[AuditedCall] = (),
        /,
        about: Any = None,
        fix: str = "",
        **evidence: Any,
    ) -> None:
        self.kind, self.record, self.where, self.fix = kind, record, where, fix
        self.updates, self.calls, self.about = updates, calls, about
        self.evidence = ({"update": updates[0].number} if updates else {}) | evidence
