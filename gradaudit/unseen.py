"""What of a run could not be seen, in words, and whether anything was left to judge."""

from collections.abc import Collection
from itertools import islice

from gradaudit.history import History, Window
from gradaudit.rules.registry import count_noun

_NAMED = 3  # optimizers in one clause, at most


def is_known(window: Window) -> bool:
    """Is it known which backward calls its gradients came from, or that it had none?"""
    return window.held > 0 or window.reused or not window.assigned


def unseen(history: History) -> list[str]:
    """What was not seen, in clauses; none if nothing is missing as far as anyone can tell."""
    clauses = []
    if not history.updates:
        clauses.append(f"no {'' if history.backwards.total else 'backward call and no '}optimizer step was seen")
        if history.processes:
            clauses.append("the script started other processes, which aren't watched")
        if history.grads and not history.backwards.total:
            clauses.append("the script took gradients with torch.autograd.grad or torch.func, which aren't followed")
    given = set(history.given.values())  # gradients that were seen where they came from
    windows = {lane: history.of(lane) for lane in history.lanes if lane not in given}
    lanes = [lane for lane in windows if not all(map(is_known, windows[lane]))]
    if lanes:
        found = [is_known(window) for lane in lanes for window in windows[lane]]
        clauses.append(
            f"in {found.count(False):,} of {count_noun(len(found), 'update')} of {_names(lanes)}, the gradients came "
            "from no backward call that was seen, as with torch.autograd.grad, torch.func or a copy of the model"
        )
    if history.unstepped:
        clauses.append(
            f"the weights of {_names(history.unstepped)} changed without a step that can be seen, as in torch.compile "
            "(TORCH_COMPILE_DISABLE=1 turns it off) or by hand"
        )
    return clauses


def _names(lanes: Collection[str]) -> str:
    """Some names of a list.

    >>> _names(["SGD"]), _names(["SGD", "Adam"]), _names(["SGD", "SGD 2", "SGD 3", "SGD 4", "SGD 5"])
    ('SGD', 'SGD and Adam', 'SGD, SGD 2, SGD 3 and 2 more')
    """
    more = [f"{len(lanes) - _NAMED:,} more"] * (len(lanes) > _NAMED)
    *others, last = [*islice(lanes, _NAMED), *more]
    return f"{', '.join(others)} and {last}" if others else last
