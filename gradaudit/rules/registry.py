"""What a rule is, what it finds, and where rules are registered."""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace

from gradaudit.history import History

ERROR, ADVICE, UNDECIDED = LEVELS = ("error", "advice", "undecided")


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found.

    Attributes:
        level: "error" (a bug for certain), "advice", or "undecided" (only the user can tell).
        message: What is wrong, in one line.
        evidence: The numbers behind the message. `update` says in which update of the lane it shows first.
        fix: What to change.
        where: The file and line of the user's code.
        lane: The optimizer that it is about; empty if it is about none in particular.
        rule: The name of the rule, which `rule` fills in.
        times: For how many optimizers the rule found it at this line; `lane` and `message` are of the first.
    """

    level: str
    message: str
    _: KW_ONLY
    evidence: dict = field(default_factory=dict)
    fix: str
    where: str = ""
    lane: str = ""
    rule: str = ""
    times: int = 1


@dataclass(frozen=True)
class Rule:
    """A registered rule: call it with a history to get its findings.

    Attributes:
        name: The name in every report, such as "stale-gradients".
        symptom: What one notices in a run that breaks the rule.
        fix: What to do about it in general; each finding says it for its own case.
        detect: The function that was registered.
        cause: How such code comes about and what it does to the gradient.
    """

    name: str
    symptom: str
    fix: str
    detect: Callable[[History], Iterator[Finding]]
    cause: str = ""

    def __call__(self, history: History) -> Iterator[Finding]:
        for finding in self.detect(history):
            yield replace(finding, rule=self.name, lane=getattr(finding.lane, "name", finding.lane))


RULES: dict[str, Rule] = {}


def rule(
    name: str, *, symptom: str, fix: str, cause: str = ""
) -> Callable[[Callable[[History], Iterator[Finding]]], Rule]:
    """Registers a generator of findings over a `History` as a rule.

    Args:
        name: The name under which all its findings appear.
        symptom: What one notices in a run that breaks the rule, in one line.
        fix: What to do about it, in one line.
        cause: How it comes about and what it does to the gradient, in a sentence; `--explain` prints it.

    Raises:
        ValueError: If a rule of this name exists, or if `symptom` or `fix` is empty.

    Example:
        >>> @rule("no-updates", symptom="The weights stand still.", fix="Call optimizer.step().")
        ... def no_updates(history):
        ...     if not history.stepped:
        ...         yield Finding(ADVICE, "no optimizer made a step", fix="call optimizer.step()")
        >>> [finding.rule for finding in no_updates(History())]
        ['no-updates']
        >>> _ = RULES.pop("no-updates")
    """
    if name in RULES:
        raise ValueError(f"there is already a rule {name!r}")
    if not (symptom and fix):
        raise ValueError(f"the rule {name!r} needs a symptom and a fix, got {symptom!r} and {fix!r}")

    def register(detect: Callable[[History], Iterator[Finding]]) -> Rule:
        RULES[name] = Rule(name, symptom, fix, detect, cause)
        return RULES[name]

    return register
