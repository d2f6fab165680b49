"""Optimizers of the script's own: does one only compute its update differently, or decide on gradients as well?"""

import sys

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
    """Has it methods for the script to call that no other has, such as one for each micro-batch?"""
    own = {name for cls in _classes_of_the_script(optimizer) for name, thing in vars(cls).items() if callable(thing)}
    return any(name not in _USUAL and not name.startswith(_READS) for name in own)


def _classes_of_the_script(optimizer: Optimizer | None) -> list[type]:
    return [cls for cls in type(optimizer).__mro__ if issubclass(cls, Optimizer) and _is_the_scripts(cls)]


def _is_the_scripts(cls: type) -> bool:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return file is None or is_users(file)  # a notebook's cells have no file
