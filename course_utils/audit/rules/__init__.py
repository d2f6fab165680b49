"""The rules: each reads the history of a run and says what is wrong in it, with its evidence. One function a rule.

To add a rule, write a function of a `History` that yields findings, and enter it in `RULES`. Its docstring says how the
bug shows and how it is mended; the cheat sheet prints it.
"""

from dataclasses import replace

from course_utils.audit.history import History
from course_utils.audit.rules.advice import batchnorm, held_graphs, low_precision_accumulation
from course_utils.audit.rules.finding import ADVICE, ERROR, UNDECIDED, Finding
from course_utils.audit.rules.scale import loss_scale, token_weights
from course_utils.audit.rules.timing import clip_timing, scaler_timing, scheduler_cadence, sync_cadence
from course_utils.audit.rules.windows import (
    discarded_gradients,
    empty_step,
    foreign_gradients,
    irregular_window,
    leftover_gradients,
    orphan_parameters,
    stale_gradients,
    strange_first_window,
)

__all__ = ["ADVICE", "ERROR", "RULES", "UNDECIDED", "Finding", "judge"]

RULES = [
    stale_gradients,
    strange_first_window,
    discarded_gradients,
    empty_step,
    foreign_gradients,
    orphan_parameters,
    irregular_window,
    leftover_gradients,
    loss_scale,
    token_weights,
    clip_timing,
    scaler_timing,
    scheduler_cadence,
    sync_cadence,
    held_graphs,
    batchnorm,
    low_precision_accumulation,
]


def judge(history: History) -> list[Finding]:
    """All that the rules find, errors first."""
    order = [ERROR, ADVICE, UNDECIDED]
    findings = [finding for rule in RULES for finding in rule(history)]
    mixed = {f.lane for f in findings if f.rule == "foreign-gradients"}  # their windows are not what was meant
    findings = [f for f in findings if f.lane not in mixed or f.rule not in ("irregular-window", "loss-scale")]
    if history.overlapping:
        findings = [replace(f, level=UNDECIDED) if f.level == ERROR else f for f in findings]
    return sorted(findings, key=lambda finding: order.index(finding.level))
