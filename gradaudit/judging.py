"""From differences to findings: what the doubts say of each, and the fix."""

from collections import Counter
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial

from gradaudit.compare import RULES, Difference
from gradaudit.compare.rules import ADVICE, ERROR, LEVELS, UNDECIDED
from gradaudit.doubts import doubts_of
from gradaudit.frameworks import fix_of
from gradaudit.history import History
from gradaudit.observe.guard import Guard

_FIRST = "orphan-parameters"  # of findings of one level: what isn't trained can't be judged otherwise


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found.

    Attributes:
        level: "error" (a bug for certain), "advice", or "undecided" (only the user can tell).
        message: What is wrong, in one line.
        doubts: Why it may be meant, in clauses.
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
    doubts: tuple[str, ...] = ()
    evidence: dict = field(default_factory=dict)
    fix: str = ""
    where: str = ""
    optimizer: str = ""
    rule: str = ""
    times: int = 1


def judge(history: History) -> list[Finding]:
    """All that the rules find in a run.

    A rule that fails finds nothing, and the others are judged. Where the auditor failed before the run had ended, what
    would be an error may come right in what it didn't see, so nothing is certain.

    Args:
        history: What was observed. It receives the failures of rules.

    Returns:
        The findings, errors first.
    """
    found = {name: _found_by(name, history) for name in RULES}
    mixed = {difference.ledger for difference in found["foreign-gradients"]}  # their windows are not what was meant
    for name in ("irregular-window", "loss-scale"):
        found[name] = [difference for difference in found[name] if difference.ledger not in mixed]
    findings = [_finding(name, each, history) for name, differences in found.items() for each in differences]
    # an update of an attack's perturbation may change nothing, and then nobody sees it
    loose = {ledger.name for ledger in history.ledgers if ledger.loose}
    findings = [f for f in findings if f.rule == "stale-gradients" or f.optimizer not in loose]
    uncertain = LEVELS if history.failure else (ERROR,) if history.overlapping else ()
    findings = [replace(f, level=UNDECIDED) if f.level in uncertain else f for f in findings]
    return sorted(_grouped(findings), key=lambda finding: (LEVELS.index(finding.level), finding.rule != _FIRST))


def _found_by(name: str, history: History) -> list[Difference]:
    guard = Guard(
        f"The auditor's rule {name}", "its findings are missing", partial(history.failed_rules.__setitem__, name)
    )
    return guard(lambda: [difference for find in RULES[name].find for difference in find(history)])() or []


def _finding(name: str, difference: Difference, history: History) -> Finding:
    rows, level = doubts_of(difference, history), difference.level
    if level == ERROR and rows:
        level = ADVICE if any(row.level == ADVICE for row in rows) else UNDECIDED
    fix = fix_of(difference, history) or (RULES[name].fix if difference.fix is None else difference.fix)
    return Finding(
        level,
        difference.message,
        doubts=tuple(row.why for row in rows if level in (UNDECIDED, row.level)),
        evidence=difference.evidence,
        fix="" if level == UNDECIDED else fix,
        where=difference.where,
        optimizer="" if difference.ledger is None else difference.ledger.name,
        rule=name,
    )


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
