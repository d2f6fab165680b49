"""The rules: each reads the history of a run and says what is wrong in it, with its evidence.

To add a rule, write a generator of findings over a `History` in the module of its subject and decorate it with
`@rule(name, symptom=..., fix=..., cause=...)`. That registers it: the auditor, the cheat sheet and the tests read
`RULES`.
"""

from dataclasses import replace
from importlib import import_module

from course_utils.audit.history import History
from course_utils.audit.rules.fixes import by_cause
from course_utils.audit.rules.registry import ADVICE, ERROR, LEVELS, RULES, UNDECIDED, Finding, Rule, rule

__all__ = ["ADVICE", "ERROR", "RULES", "UNDECIDED", "Finding", "Rule", "judge", "rule"]

_SUBJECTS = ("windows", "sizes", "scale", "unused", "timing", "advice")  # the order of RULES, and so of reports
for _subject in _SUBJECTS:
    import_module(f"{__name__}.{_subject}")


def judge(history: History) -> list[Finding]:
    """All that the rules find in a run.

    Args:
        history: What was observed.

    Returns:
        The findings, errors first.
    """
    findings = [by_cause(finding, history) for rule in RULES.values() for finding in rule(history)]
    mixed = {f.lane for f in findings if f.rule == "foreign-gradients"}  # their windows are not what was meant
    findings = [f for f in findings if f.lane not in mixed or f.rule not in ("irregular-window", "loss-scale")]
    # an update of an attack's perturbation may change nothing, and then nobody sees it
    findings = [f for f in findings if f.lane not in history.loose or f.rule == "stale-gradients"]
    if history.overlapping:
        findings = [replace(f, level=UNDECIDED) if f.level == ERROR else f for f in findings]
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))
