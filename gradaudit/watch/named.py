"""Losses that a script computes and gives a name: does a backward call, or `autograd.grad`, ever reach them?

When a backward call begins, the variables of the functions that led to it hold the losses of that micro-batch. What is
forgotten in the total is among them. No loss function has to be patched for this, and nothing is kept alive.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from inspect import CO_OPTIMIZED
from itertools import islice
from types import FrameType

import torch
from torch import Tensor

from gradaudit.callsite import is_users
from gradaudit.history import NamedLoss
from gradaudit.observe.guard import Guard
from gradaudit.observe.uncompiled import backward_is_compiled
from gradaudit.watch.losses import find_losses, is_loss_function, leads_to_losses, walk

_FRAMES = 4  # functions of the user's that are looked at in one backward call, at most
_FAR = 20  # nodes between a variable and the losses that it was made of, at most
_HANDED_OUT = {"locals", "vars", "exec"}  # a function that uses one of these may hold, or write, its f_locals


class NamedLosses:
    """Watches the losses that are in variables when a backward call begins.

    `key`: their nodes are marked with it. `guard`: calls the hooks on them.
    """

    def __init__(self, key: str, guard: Guard) -> None:
        self.terms_key, self.key, self.guard = key, f"{key} name", guard
        self.found: dict[tuple[str, str], NamedLoss] = {}
        self.updates: set[int] = set()  # those before which it was looked
        self.looked = 0  # when it was looked last, in operations
        self.handles: list = []

    def look(self, update: int) -> None:
        """A backward call, or `autograd.grad`, begins. `update` is the number of the update that follows, from 0."""
        if backward_is_compiled():
            return
        self.updates.add(update)
        for name, tensor, place in _named_tensors():
            with suppress(RuntimeError):  # a view that was written to under no_grad() refuses to tell its node
                node = tensor.grad_fn if tensor.requires_grad and tensor.numel() == 1 else None
                if node is not None and self.key not in node.metadata:
                    loss = self.found.setdefault((name, place.rpartition(":")[0]), NamedLoss(name, place))
                    if not loss.reached:
                        self._watch(loss, node, update)
        self.looked = torch.autograd._get_sequence_nr()

    def _watch(self, loss: NamedLoss, node, update: int) -> None:
        below = find_losses(node, count=False)[0]
        if "loss" not in loss.name.lower() and not any(is_loss_function(term.name) for _, term in below):
            return
        node.metadata[self.key] = True
        parts = [each for each, _ in below if each is not node]  # a sum for the log is used if all that it adds up is
        left = {k for k, part in enumerate(parts) if self.terms_key not in part.metadata}
        reached = self.terms_key in node.metadata or (parts and not left)  # by this backward call, or an earlier one
        if reached or self._shows_what_was_there(node):
            loss.reached = True
            return
        loss.updates.add(update)

        def note(reached: set[int]) -> None:
            left.difference_update(reached)
            loss.reached |= not left

        hooks = [(node, frozenset(left)), *((parts[k], {k}) for k in left)]
        self.handles += [at.register_prehook(self.guard(lambda _, of=of: note(of))) for at, of in hooks]

    def _shows_what_was_there(self, node) -> bool:
        """Was it made after a backward call, of losses from before, through which that call may have gone?"""
        made_of = islice(walk([node], stop=lambda each: not leads_to_losses(each.name())), _FAR)
        return node._sequence_nr() >= self.looked > min(each._sequence_nr() for each in made_of)

    def end(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


def _named_tensors() -> Iterator[tuple[str, Tensor, str]]:
    """The tensors in the variables of the user's functions that are running, and the place in each function."""
    frame, left = sys._getframe(1), _FRAMES
    while frame is not None and left:
        code = frame.f_code
        if is_users(code.co_filename):
            left -= 1
            place = f"{code.co_filename}:{frame.f_lineno}"
            for name, value in _variables(frame).items():
                if issubclass(type(value), Tensor):  # of others nothing but the type is read
                    yield name, value, place
                elif type(value) is dict and "loss" in name.lower():
                    yield from ((f"{name}[{k!r}]", v, place) for k, v in value.items() if issubclass(type(v), Tensor))
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
