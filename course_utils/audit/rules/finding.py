"""A finding, and the words that rules share."""

from dataclasses import dataclass, field

ERROR, ADVICE, UNDECIDED = "error", "advice", "undecided"


@dataclass(frozen=True)
class Finding:
    """One bug: its rule, one line of what, the evidence in numbers, the mend, and where in the user's code."""

    rule: str
    level: str
    message: str
    fix: str
    where: str = ""
    evidence: dict = field(default_factory=dict)
    lane: str = ""  # the optimizer that it is about


def count_noun(count: int, what: str) -> str:
    """
    >>> count_noun(1, "micro-batch"), count_noun(2, "micro-batch"), count_noun(3, "update")
    ('1 micro-batch', '2 micro-batches', '3 updates')
    """
    return f"{count:,} {what}{'' if count == 1 else 'es' if what.endswith('ch') else 's'}"
