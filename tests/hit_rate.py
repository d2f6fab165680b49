"""How often the auditor is right about loops whose bugs are known."""

import gc
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gradaudit import audit

_LEVELS = ("error", "advice", "undecided", "missed")


@dataclass(frozen=True)
class HitRate:
    """What the auditor said; as text, a table.

    Attributes:
        by_kind: For each kind of bug, of how many planted ones the right rule found an "error" (or gave "advice", or
            left it "undecided"), and how many were "missed".
        false_errors: The rules that found an error which is none, in all loops.
        correct: How many of the loops were correct.
        buggy: How many were not.
    """

    by_kind: dict[str, Counter]
    false_errors: list[str]
    correct: int
    buggy: int

    @property
    def total(self) -> Counter:
        """How many planted bugs were an "error", "undecided", and so on."""
        return sum(self.by_kind.values(), Counter())

    def __str__(self) -> str:
        levels = [level for level in _LEVELS if level != "advice" or self.total["advice"]]
        rows = [f"{'kind of bug':29} planted" + "".join(f"{level:>10}" for level in levels)]
        for kind, found in (self.by_kind | {"all": self.total}).items():
            rows.append(f"{kind:29} {found.total():7}" + "".join(f"{found[level] or '':>10}" for level in levels))
        rows.append(f"false errors in {self.correct} correct and {self.buggy} buggy loops: {len(self.false_errors)}")
        return "\n".join(row.rstrip() for row in rows)


def hit_rate(loops: Iterable) -> HitRate:
    """Runs each loop under an audit that knows the intended window, and compares what it finds with what was planted.

    Args:
        loops: Those of `unseen.py`, or others that have `planted` and `n`, and that train when they are called.

    Example:
        >>> from unseen import unseen_loops
        >>> hit_rate(unseen_loops(correct=2, buggy=0)).false_errors
        []
    """
    by_kind: dict[str, Counter] = {}
    false_errors, correct, buggy = [], 0, 0
    gc.freeze()  # for speed: an audit searches for optimizers among all living objects
    try:
        for loop in loops:
            with audit(window=loop.n) as report:
                loop()
            level_of = {finding.rule: finding.level for finding in reversed(report.findings)}  # errors come first
            for bug in loop.planted:
                by_kind.setdefault(bug.kind, Counter())[level_of.get(bug.rule, "missed")] += 1
            expected = {rule for bug in loop.planted for rule in (bug.rule, *bug.also)}
            false_errors += [rule for rule in report.rules if rule not in expected]
            correct, buggy = correct + (not loop.planted), buggy + bool(loop.planted)
    finally:
        gc.unfreeze()
    return HitRate(by_kind, false_errors, correct, buggy)
