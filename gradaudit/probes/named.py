"""Losses that a script computes and gives a name: does a backward call, or `autograd.grad`, ever reach them?

When a backward call begins, the variables of the functions that led to it hold the losses of that micro-batch. What is
forgotten in the total is among them. No loss function has to be patched for this, and nothing is kept alive.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from inspect import CO_OPTIMIZED
from types import FrameType

from torch import Tensor

from gradaudit.callsite import is_users
from gradaudit.probes.losses import find_losses

_HANDED_OUT = {"locals", "vars", "exec"}  # a function that uses one of these may hold, or write, its f_locals


class NamedLosses:
    """Compares the losses that are in variables with those that backward calls reach, which are marked with `key`."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.reached: set[tuple[str, str]] = set()  # by name and file
        self.missed: dict[tuple[str, str], tuple[str, set[int]]] = {}  # where it stands, and before which updates
        self.updates: set[int] = set()  # those before which it was looked

    def look(self, update: int) -> None:
        """A backward call begins, and its losses are marked. `update`: the number of the one that follows, from 0."""
        self.updates.add(update)
        for name, tensor, place in _named_tensors():
            with suppress(RuntimeError):  # a view that was written to under no_grad() refuses to tell its node
                below = find_losses(tensor.grad_fn, count=False)[0] if tensor.numel() == 1 else ()
                if below and ("loss" in name.lower() or any(term.name not in ("mean", "sum") for _, term in below)):
                    loss = name, place.rpartition(":")[0]
                    if all(self.key in part.metadata for part, _ in below):  # of a sum, each part
                        self.reached.add(loss)
                    else:
                        self.missed.setdefault(loss, (place, set()))[1].add(update)

    def unused(self) -> list[tuple[str, str, int]]:
        """Those that were never reached, and were there before half of the updates: name, place, how many updates."""
        never = [(loss[0], place, len(at)) for loss, (place, at) in self.missed.items() if loss not in self.reached]
        return [each for each in never if 2 * each[-1] >= len(self.updates)]


def _named_tensors() -> Iterator[tuple[str, Tensor, str]]:
    """The tensors in the variables of the user's functions that are running, and the place in each function."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            for name, value in _variables(frame).items():
                if issubclass(type(value), Tensor):  # of others nothing but the type is read
                    yield name, value, f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back


def _variables(frame: FrameType) -> dict:
    """A function's variables, and those of its module that it uses."""
    code = frame.f_code
    variables = {name: frame.f_globals[name] for name in code.co_names if name in frame.f_globals}
    # Before Python 3.13, f_locals is a copy that stays with the frame, and that locals() hands out as well.
    if code.co_flags & CO_OPTIMIZED and _HANDED_OUT.isdisjoint(code.co_names):
        names = frame.f_locals
        variables |= names
        if type(names) is dict:
            names.clear()  # or its tensors would stay alive
    return variables
