"""Losses that a script makes with PyTorch's functions, line by line: how many of them go back?

One that no backward call takes along is missing from its window, though nothing in `.grad` shows it.
"""

from collections.abc import Generator, Iterable
from itertools import pairwise
from math import isfinite

import torch
from torch import Tensor
from torch.nn import functional

from gradaudit.callsite import Place, caller_location
from gradaudit.observe.ledger import Kept
from gradaudit.observe.observer import Observer

_FUNCTIONS = ("binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss", "kl_div",
              "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss")  # fmt: skip


class _Loss:
    went_back = False


class MadeLosses:
    """Watches PyTorch's loss functions. `key`: under which the node of a loss is marked."""

    def __init__(self, key: str, observer: Observer) -> None:
        self.key = f"{key} made"
        self.sites: dict[tuple, tuple[Place, Kept]] = {}  # by call site: its place, and the losses made there
        self.missed = False  # may something have gone back that wasn't followed?
        self.inside = False  # one of the functions may call another
        for name in _FUNCTIONS:
            observer.patch(functional, name, self._around_loss)

    def _around_loss(self, *_, **__) -> Generator:
        outer, self.inside = self.inside, True
        try:
            loss = yield
        finally:
            self.inside = outer
        if outer or type(loss) is not Tensor or torch._C._functorch.peek_interpreter_stack() is not None:
            return
        finite = loss.numel() == 1 and loss.requires_grad and not (loss.is_cpu and not isfinite(loss.item()))
        if finite:  # one that is no number is left out on purpose
            where, *site = caller_location()
            made, losses = self.sites.get(site := tuple(site), (where, Kept()))
            losses.append(_Loss())
            loss.grad_fn.metadata[self.key] = losses[-1]
            self.sites[site] = made, losses if len(losses) < 4 * Kept.half else losses.trimmed()

    def go_back(self, nodes: Iterable, all_: bool) -> None:
        """Something goes back through these nodes. `all_`: and through no others that may be a loss."""
        self.missed |= not all_
        for node in nodes if self.sites else ():
            if node is not None and self.key in node.metadata:
                node.metadata[self.key].went_back = True

    def count(self) -> int:
        return sum(losses.total for _, losses in self.sites.values())

    def left_out(self) -> list[tuple[Place, int, int, int]]:
        """Lines of which only some losses went back: the place, how many did, of how many, and one in how many."""
        found = []
        for where, losses in self.sites.values() if not self.missed else ():
            went = [loss.went_back for loss in losses]
            if 0 < sum(went) < len(went):
                found.append((where, sum(went), len(went), period(went)))
        return found


def period(went: list[bool]) -> int:
    """Of how many losses one goes back, again and again; 0 if they do so irregularly.

    >>> period([False, True] * 3), period([True, True, False, True, True]), period([False, False, True])
    (2, 0, 0)
    """
    places = [k for k, each in enumerate(went) if each]
    gaps = {after - before for before, after in pairwise(places)}
    return gaps.pop() if len(gaps) == 1 and 1 not in gaps else 0
