"""The rules: each reads the history of a run and says what is wrong in it, with its evidence.

To add a rule, write a generator of findings over a `History` in the module of its subject and decorate it with
`@rule(name, symptom=..., fix=..., cause=...)`. That registers it: the auditor, the cheat sheet and the tests read
`RULES`.
"""

from collections import Counter
from dataclasses import replace
from functools import partial
from importlib import import_module

from gradaudit.history import History
from gradaudit.observe.guard import Guard
from gradaudit.rules.fixes import by_cause
from gradaudit.rules.registry import ADVICE, ERROR, LEVELS, RULES, UNDECIDED, Finding, Rule, rule

__all__ = ["ADVICE", "ERROR", "RULES", "UNDECIDED", "Finding", "Rule", "judge", "rule"]

_SUBJECTS = ("windows", "sizes", "scale", "unused", "timing", "advice")  # the order of RULES, and so of reports
for _subject in _SUBJECTS:
    import_module(f"{__name__}.{_subject}")


def judge(history: History) -> list[Finding]:
    """All that the rules find in a run.

    A rule that fails finds nothing, and the others are judged. Where the auditor failed before the run had ended, what
    would be an error may come right in what it didn't see, so nothing is certain.

    Args:
        history: What was observed. It receives the failures of rules.

    Returns:
        The findings, errors first.
    """
    findings = [finding for name in RULES for finding in _found_by(name, history)]
    mixed = {f.lane for f in findings if f.rule == "foreign-gradients"}  # their windows are not what was meant
    findings = [f for f in findings if f.lane not in mixed or f.rule not in ("irregular-window", "loss-scale")]
    loose = {record.name for record in history.records if record.loose}
    # an update of an attack's perturbation may change nothing, and then nobody sees it
    findings = [f for f in findings if f.lane not in loose or f.rule == "stale-gradients"]
    uncertain = LEVELS if history.failure else (ERROR,) if history.overlapping else ()
    findings = [replace(f, level=UNDECIDED) if f.level in uncertain else f for f in findings]
    return sorted(_grouped(findings), key=lambda finding: LEVELS.index(finding.level))


def _grouped(findings: list[Finding]) -> list[Finding]:
    """One for each rule and line, with a count: a loop may create an optimizer for each task, or for each update.

    What a rule finds twice for one optimizer has two causes.
    """
    groups: dict[tuple, list[Finding]] = {}
    times: Counter[tuple] = Counter()
    for finding in findings:
        cause = finding.level, finding.rule, finding.where, finding.fix
        times[finding.lane, cause] += 1
        groups.setdefault((times[finding.lane, cause], cause), []).append(finding)
    return [replace(same[0], times=len(same)) for same in groups.values()]


def _found_by(name: str, history: History) -> list[Finding]:
    guard = Guard(
        f"The auditor's rule {name}", "its findings are missing", partial(history.failed_rules.__setitem__, name)
    )
    return guard(lambda: [by_cause(finding, history) for finding in RULES[name](history)])() or []
