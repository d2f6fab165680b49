"""What all rules find in a run."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from gradaudit.history import History
from gradaudit.observe.guard import Guard
from gradaudit.rules import RULES
from gradaudit.rules.rule import ERROR, LEVELS, UNDECIDED, Finding

_FIRST = "orphan-parameters"  # of findings of one level: what isn't trained can't be judged otherwise


def judge(history: History) -> list[Finding]:
    """All that the rules find in a run.

    A rule that fails finds nothing, and the others are judged. Where the auditor failed before the run had ended, what
    would be an error may come right in what it didn't see, so nothing is certain.

    Args:
        history: What was observed. It receives the failures of rules, and why a rule had nothing to judge.

    Returns:
        The findings, errors first.
    """
    found = {name: _found_by(name, history) for name in RULES}
    irregular = [finding for finding in found["irregular-window"] if finding.level == ERROR and history.by_framework]
    odd = {finding.optimizer for finding in irregular}  # of one cause, one error
    mixed = {finding.optimizer for finding in found["foreign-gradients"]}  # their windows are not what was meant
    # an update of an attack's perturbation may change nothing, and then nobody sees it
    loose = {ledger.name for ledger in history.ledgers if ledger.loose}
    hidden = {name: loose for name in RULES if name != "stale-gradients"}
    hidden |= {"irregular-window": loose | mixed, "loss-scale": loose | mixed | odd}
    findings = [f for name, each in found.items() for f in each if f.optimizer not in hidden.get(name, ())]
    uncertain = LEVELS if history.failure else (ERROR,) if history.overlapping else ()
    findings = [replace(f, level=UNDECIDED, fix="") if f.level in uncertain else f for f in findings]
    return sorted(_grouped(findings), key=lambda finding: (LEVELS.index(finding.level), finding.rule != _FIRST))


def _found_by(name: str, history: History) -> list[Finding]:
    rule, note = RULES[name], partial(history.failed_rules.__setitem__, name)
    guard = Guard(f"The auditor's rule {name}", "its findings are missing", note)

    def judged() -> Iterator[Finding]:
        if not rule.judges(history):
            history.not_judged[name] = rule.otherwise
        for each in rule.find(history):
            yield replace(each, rule=name, fix=rule.fix if each.fix is None else each.fix)

    return guard(lambda: list(judged()))() or []


def _grouped(findings: list[Finding]) -> list[Finding]:
    """One for each rule and line, with a count: a loop may create an optimizer for each task, or for each update.

    What a rule finds twice for one optimizer has two causes.
    """
    groups: dict[tuple, list[Finding]] = {}
    times: Counter[tuple] = Counter()
    for finding in findings:
        cause = finding.level, finding.rule, finding.where, finding.fix
        times[finding.optimizer, cause] += 1
        groups.setdefault((times[finding.optimizer, cause], cause), []).append(finding)
    return [replace(same[0], times=len(same)) for same in groups.values()]
