"""What a schedule of the script's own knows of its length, so that it can be told what that length counts."""

import re
from collections.abc import Iterator

from torch.optim import lr_scheduler

from gradaudit.callsite import is_users

_OF_A_LENGTH = re.compile(r"total|^t_?max$|length|(steps|iters?|iterations|updates)$", re.I)
_OF_A_PART = re.compile(r"warm|decay|cycle|restart|accum|per_|every|^_|^last_epoch$", re.I)


def follows_the_script(scheduler: lr_scheduler.LRScheduler) -> bool:
    """Is the learning rate what a function of the script's says? Only the script knows what that one counts."""
    return any(is_users(code.co_filename) for _, code, _ in _functions(scheduler))


def is_of_the_script(scheduler: lr_scheduler.LRScheduler) -> bool:
    """Does a class of the script's own say what the learning rate is?"""
    code = getattr(type(scheduler).get_lr, "__code__", None)
    return code is not None and is_users(code.co_filename)


def own_numbers(scheduler: lr_scheduler.LRScheduler) -> tuple[float, frozenset]:
    """The largest number that its function, or its class, knows by the name of a length, or 0; and all other numbers.

    One of those may be the micro-batches of a window, by which it divides.
    """
    named = [*_known_to_its_functions(scheduler), *_known_to_its_class(scheduler)]
    named = [(name, value) for name, value in named if type(value) in (int, float)]
    lengths = {value for name, value in named if _OF_A_LENGTH.search(name) and not _OF_A_PART.search(name)}
    others = {value for name, value in named if not re.search("warm", name, re.I)} - lengths
    consts = (each for _, code, _ in _functions(scheduler) for each in code.co_consts)
    return max(lengths, default=0), frozenset(others.union(each for each in consts if type(each) is int))


def _functions(scheduler: lr_scheduler.LRScheduler) -> Iterator[tuple]:
    """Each function that gives a rate, with its code and what was passed to it beforehand."""
    for each in getattr(scheduler, "lr_lambdas", ()):
        function = getattr(each, "func", each)
        code = getattr(function, "__code__", None)
        if code is not None:
            yield function, code, getattr(each, "keywords", {})


def _known_to_its_functions(scheduler: lr_scheduler.LRScheduler) -> Iterator[tuple[str, object]]:
    for function, code, keywords in _functions(scheduler):
        yield from keywords.items()
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                yield name, cell.cell_contents
            except ValueError:  # it has been deleted
                continue
        for known in (function.__globals__, getattr(getattr(function, "__self__", None), "__dict__", {})):
            yield from ((name, known[name]) for name in code.co_names if name in known)


def _known_to_its_class(scheduler: lr_scheduler.LRScheduler) -> Iterator[tuple[str, object]]:
    if is_of_the_script(scheduler):
        yield from vars(scheduler).items()
