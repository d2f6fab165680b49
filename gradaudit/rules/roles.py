"""Backward calls of a window that look like micro-batches and may be several losses, which are meant to be added up."""

from gradaudit.history import AuditedCall, AuditedUpdate
from gradaudit.rules.terms import losses_of

_LOOKED_AT = 3  # windows


def why_a_sum(windows: list[AuditedUpdate]) -> str:
    """What speaks for several losses, if all windows have it; "" if nothing does."""
    calls = [window.micro_batches for window in windows[:_LOOKED_AT]]
    for why, holds in _REASONS.items():
        if all(len(each) > 1 and holds(each) for each in calls):
            return why
    return "their targets are labels, such as real and fake" if _labels(windows[:_LOOKED_AT]) else ""


def _called_from_different_places(calls: list[AuditedCall]) -> bool:
    """By a helper that is called once for each loss."""
    alike = len({call.line for call in calls}) == 1 and len({call.synced for call in calls}) == 1
    return alike and len({call.path for call in calls}) == len(calls)


def _computed_together(calls: list[AuditedCall]) -> bool:
    return all(call.early for call in calls[1:])


def _of_several_data_sets(calls: list[AuditedCall]) -> bool:
    first, *later = (call.drawn for call in calls)
    at_once = len(first) == len(calls) and not any(later)
    return at_once or len({*first, *(k for each in later for k in each)}) == len(calls) == sum(
        map(bool, [first, *later])
    )


def _labels(windows: list[AuditedUpdate]) -> bool:
    """Has each micro-batch only one value for a target, which is another in the next, and the same in all windows?"""
    seen = set()
    for window in windows:
        for terms in losses_of(window) or [[]]:
            targets = [set(term.targets) for term in terms]
            seen.add(tuple(values.pop() if len(values) == 1 and len(term.targets) > 1 else None
                           for values, term in zip(targets, terms, strict=True)))  # fmt: skip
    (labels,) = seen if len(seen) == 1 else ((),)
    return len(windows) > 1 and len(labels) > 1 and None not in labels and len(set(labels)) == len(labels)


def _of_one_sequence(calls: list[AuditedCall]) -> bool:
    return all(call.passes > 1 for call in calls[1:])


_REASONS = {
    "a helper is called for each from a line of its own": _called_from_different_places,
    "all of them are computed before the first backward call": _computed_together,
    "each is from a data set of its own": _of_several_data_sets,
    "each goes back through the one before, as the steps of a sequence do": _of_one_sequence,
}
