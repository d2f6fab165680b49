"""Optimizers of the script's own: does one only compute its update differently, or decide on gradients as well?"""

import sys
from collections.abc import Callable, Iterator
from types import CodeType

from torch.optim import Optimizer

from gradaudit.callsite import is_users

_READS = "_", "get_"
_USUAL = frozenset(name for name in dir(Optimizer) if not name.startswith("_"))


def steps_its_own_way(optimizer: Optimizer | None) -> bool:
    """May its step collect, divide or keep gradients, so that nobody knows from outside which of them it uses?

    So it may if it goes on to the step of another class, or if its zeroing is the script's, too. One that is written
    from scratch is only another formula.
    """
    own = _classes_of_the_script(optimizer)
    steps = [cls for cls in type(optimizer).__mro__ if "step" in vars(cls) and cls is not Optimizer]
    return any(cls in own for cls in steps[:-1]) or any("zero_grad" in vars(cls) for cls in own)


def may_collect(optimizer: Optimizer | None) -> bool:
    """Has it methods for the script to call that no other has, such as one for each micro-batch?

    What only reads, as get_lr() does, or sets a rate, is none: it names no gradient and calls no method of its own.
    """
    own = {name: thing for cls in _classes_of_the_script(optimizer) for name, thing in vars(cls).items()}
    methods = [thing for name, thing in own.items() if not name.startswith(_READS) and name not in _USUAL]
    return any(callable(each) and _may_touch_gradients(each, set(own)) for each in methods)


def _may_touch_gradients(method: Callable, own: set[str]) -> bool:
    code = getattr(method, "__code__", None)
    if code is None:
        return True
    helpers = {name for name, thing in method.__globals__.items() if _is_a_function_of_the_scripts(thing)}
    return any("grad" in name or name in {"super", *own, *helpers} for name in _names_in(code))


def _is_a_function_of_the_scripts(thing: object) -> bool:
    return hasattr(thing, "__code__") and is_users(thing.__code__.co_filename)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names_in(part)


def _classes_of_the_script(optimizer: Optimizer | None) -> list[type]:
    return [cls for cls in type(optimizer).__mro__ if issubclass(cls, Optimizer) and _is_the_scripts(cls)]


def _is_the_scripts(cls: type) -> bool:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return file is None or is_users(file)  # a notebook's cells have no file
