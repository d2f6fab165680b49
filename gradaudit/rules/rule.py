"""What a rule is, and what it finds.

To add one, write a generator of findings over a `History` in a file of its own, under `@rule`, with its texts as
docstring, and name the file in `gradaudit.rules`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from inspect import cleandoc
from textwrap import dedent
from typing import Any

from gradaudit.history import AuditedLedger, AuditedUpdate, History

ERROR, ADVICE, UNDECIDED = LEVELS = ("error", "advice", "undecided")
_TITLES = "Symptom", "Cause", "Fix", "Known problems"


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found.

    Attributes:
        level: "error" (a bug for certain), "advice", or "undecided" (only the user can tell).
        message: What was observed, in one line.
        reasons: Why it may be meant, in clauses.
        evidence: The numbers behind the message. `update` says in which update of the optimizer it shows first.
        fix: What to change; empty if that isn't certain.
        where: The file and line of the cause in the user's code.
        optimizer: The name of the one that it is about; empty if it is about none in particular.
        rule: The name of the rule.
        times: For how many optimizers the rule found it at this line; `optimizer` and `message` are of the first.
    """

    level: str
    message: str
    _: KW_ONLY
    reasons: tuple[str, ...] = ()
    evidence: dict = field(default_factory=dict)
    fix: str | None = ""  # None, until it is judged, if what its rule says is all there is to it
    where: str = ""
    optimizer: str = ""
    rule: str = ""
    times: int = 1


def finding(
    ledger: AuditedLedger | None,
    where: str,
    message: str,
    shown_in: Sequence[AuditedUpdate] = (),
    reasons: Iterable[str] = (),
    *,
    level: str = ERROR,
    fix: str | None = None,
    **evidence: Any,
) -> Finding:
    """A finding about an optimizer, or about none. Where there is a reason, an error is undecided.

    Args:
        ledger: The optimizer's; None if it is about none in particular.
        where: The line of the cause.
        message: What was observed.
        shown_in: The updates in which it shows, the first one first.
        reasons: Why it may be meant, in clauses.
        level: What it is if there is no reason.
        fix: What to change; None if the rule says it, "" if nothing is certain.
        **evidence: The numbers.
    """
    reasons = tuple(reasons)
    level = UNDECIDED if level == ERROR and reasons else level
    return Finding(
        level,
        message,
        reasons=reasons,
        evidence=({"update": shown_in[0].number} if shown_in else {}) | evidence,
        fix="" if level == UNDECIDED else fix,
        where=where,
        optimizer="" if ledger is None else ledger.name,
    )


class Rule:
    """A rule, as its docstring tells it.

    Attributes:
        name: The name in every report, such as "stale-gradients".
        symptom: What one notices in a run that breaks the rule.
        cause: How such code comes about and what it does to the gradient.
        fix: What to do about it in general; each finding says it for its own case.
        known_problems: What it can't see, or takes for something else.
        wrong: Lines of such code.
        correct: The same lines without the bug.
        reported: Where such bugs were reported in public, below https://github.com.
        find: What yields the findings.
        judges: Whether a run holds something that it can judge.
        otherwise: Why it can't, in a clause.
    """

    def __init__(self, name: str, find: Callable, judges: Callable[[History], bool], otherwise: str) -> None:
        self.name, self.find, self.judges, self.otherwise = name, find, judges, otherwise
        texts = dict(re.findall(r"^([A-Z][a-z ]+):\s(.*?)(?=^[A-Z][a-z ]+:\s|\Z)", cleandoc(find.__doc__), re.M | re.S))
        self.wrong, self.correct = (dedent(texts.pop(title)).strip() for title in ("Wrong", "Correct"))
        texts = {title: " ".join(text.split()) for title, text in texts.items()}
        self.symptom, self.cause, self.fix, self.known_problems = (texts.get(title, "") for title in _TITLES)
        self.reported = tuple(texts["Reported"].split(", "))


RULES: dict[str, Rule] = {}


def rule(name: str, judges: Callable[[History], object], otherwise: str) -> Callable[[Callable], Callable]:
    """Makes a rule of a generator function, which yields what is found in a history.

    Args:
        name: The rule's name.
        judges: Whether a history holds something that it can judge.
        otherwise: Why it can't, as a clause of a report.
    """

    def add(find: Callable[[History], Iterator[Finding]]) -> Callable:
        RULES[name] = Rule(name, find, lambda history: bool(judges(history)), otherwise)
        return find

    return add


# What more than one rule asks


def made_updates(history: History) -> list[AuditedUpdate]:
    return [update for update in history.updates if update.known]


def windows_of_several(history: History) -> list[AuditedUpdate]:
    """The updates from several micro-batches."""
    return [update for update in history.updates if update.size > 1]


CHANGED = "the script changes the gradients itself before the step"


def by_framework(history: History, ledger: AuditedLedger, where: str, **fixes: str) -> str | None:
    """The fix in the words of the framework that runs the loop; None if none does, or it has none of its own."""
    places = [where, *(call.where for call in history.calls_of(ledger))]
    framework = next((name for place in places if (name := getattr(place, "framework", ""))), "")
    return fixes.get("transformers" if framework == "trl" else framework)
