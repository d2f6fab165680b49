"""The rules: each reads the history of a run and says what is wrong in it, with its evidence.

To add a rule, write a generator of findings over a `History` in the module of its subject and decorate it with
`@rule(name, symptom=..., fix=...)`. That registers it: the auditor, the cheat sheet and the tests read `RULES`.
"""

from dataclasses import replace
from importlib import import_module

from course_utils.audit.history import History
from course_utils.audit.rules.fixes import by_cause
from course_utils.audit.rules.registry import ADVICE, ERROR, LEVELS, RULES, UNDECIDED, Finding, Rule, rule

__all__ = ["ADVICE", "ERROR", "RULES", "UNDECIDED", "Finding", "Rule", "judge", "rule"]

for _subject in ("windows", "scale", "timing", "advice"):  # the order of RULES, and so of reports and the cheat sheet
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
    if history.overlapping:
        findings = [replace(f, level=UNDECIDED) if f.level == ERROR else f for f in findings]
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))
