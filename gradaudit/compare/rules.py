"""What a rule is, and what it yields.

To add one, write a generator of differences over a `History` as one of the modules here, under `@rule`, with its texts
as docstring.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from inspect import cleandoc
from textwrap import dedent
from typing import Any

from gradaudit.history import AuditedCall, AuditedLedger, AuditedUpdate, History

ERROR, ADVICE, UNDECIDED = LEVELS = ("error", "advice", "undecided")


class Difference:
    """What was observed, where a loop over the intended windows does something else.

    Attributes:
        kind: What `doubts` are about.
        ledger: The optimizer; None if it is about none in particular.
        where: The line of the cause.
        message: What was observed, in words.
        updates: Those in which it shows, the first one first.
        calls: The backward calls that it is about.
        about: What else doubts ask about.
        fix: What to change; None if what its rule says is all there is to it, "" if nothing is certain.
        level: What it is if nothing speaks for it.
        evidence: The numbers. `update` says in which update it shows first.
    """

    def __init__(
        self,
        kind: str,
        ledger: AuditedLedger | None,
        where: str,
        message: str,
        updates: Sequence[AuditedUpdate] = (),
        calls: Sequence[AuditedCall] = (),
        /,
        about: Any = None,
        fix: str | None = None,
        level: str = ERROR,
        **evidence: Any,
    ) -> None:
        self.kind, self.ledger, self.where, self.message = kind, ledger, where, message
        self.updates, self.calls, self.about = updates, calls, about
        self.fix, self.level = fix, level
        self.evidence = ({"update": updates[0].number} if updates else {}) | evidence


class Rule:
    """A rule, as its docstring tells it.

    Attributes:
        name: The name in every report, such as "stale-gradients".
        symptom: What one notices in a run that breaks the rule.
        cause: How such code comes about and what it does to the gradient.
        fix: What to do about it in general; each finding says it for its own case.
        wrong: Lines of such code.
        correct: The same lines without the bug.
        reported: Where such bugs were reported in public, below https://github.com.
        find: What yields the differences that it is about.
    """

    def __init__(self, name: str, find: Callable[[History], Iterator[Difference]]) -> None:
        self.name = name
        texts = dict(re.findall(r"^(\w+):\s(.*?)(?=^\w+:\s|\Z)", cleandoc(find.__doc__ or ""), re.M | re.S))
        self.wrong, self.correct = (dedent(texts.pop(title, "")).strip() for title in ("Wrong", "Correct"))
        texts = {title: " ".join(text.split()) for title, text in texts.items()}
        self.symptom, self.cause, self.fix = (texts.get(title, "") for title in ("Symptom", "Cause", "Fix"))
        self.reported = tuple(filter(None, texts.get("Reported", "").split(", ")))
        self.find = [find]


RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Callable], Callable]:
    """What it decorates yields differences. Of several functions for one rule, the first tells what that is about."""

    def add(find: Callable[[History], Iterator[Difference]]) -> Callable:
        if name in RULES:
            RULES[name].find.append(find)
        else:
            RULES[name] = Rule(name, find)
        return find

    return add
