"""Ways to break PyTorch, for the tests that see a claim's cell fail when the claim is false.

Each is a context manager under the name by which a fact of data/facts calls it (`falsifier.breakage`).
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

BREAKAGES: dict[str, Callable] = {}


def patched(owner: object, name: str, around: Callable) -> AbstractContextManager:
    """`owner.name` is replaced by `around(original)` while the block runs."""
    original = getattr(owner, name)
    return patch.object(owner, name, functools.wraps(original)(around(original)))


@contextmanager
def zero_grad_becomes(around: Callable) -> Iterator[None]:
    with patched(Optimizer, "zero_grad", around), patched(nn.Module, "zero_grad", around):
        yield


BREAKAGES["torch: zero_grad does nothing"] = lambda: zero_grad_becomes(
    lambda original: lambda self, set_to_none=True: None
)
BREAKAGES["torch: zero_grad writes zeros"] = lambda: zero_grad_becomes(
    lambda original: lambda self, set_to_none=False: original(self, False)
)
BREAKAGES["torch: zero_grad always sets None"] = lambda: zero_grad_becomes(
    lambda original: lambda self, set_to_none=True: original(self, True)
)


def leaves(root) -> list[Tensor]:
    """The leaves that a backward from `root` would reach."""
    found, seen, todo = [], set(), [root.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        todo += [following for following, _ in node.next_functions]
    return found


@contextmanager
def backward_combines(combine: Callable[[Tensor | None, Tensor], Tensor]) -> Iterator[None]:
    """backward() stores `combine(old .grad, new gradient)` instead of their sum."""

    def around(original):
        def backward(tensors, *args, **kwargs):
            roots = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
            reached = list({id(p): p for root in roots for p in leaves(root)}.values())
            old = [p.grad for p in reached]
            for p in reached:
                p.grad = None
            original(tensors, *args, **kwargs)
            for p, before in zip(reached, old, strict=True):
                p.grad = combine(before, p.grad) if p.grad is not None else before

        return backward

    with patched(torch.autograd, "backward", around):
        yield


BREAKAGES["torch: backward replaces .grad"] = lambda: backward_combines(lambda old, new: new)
BREAKAGES["torch: backward adds with the wrong sign"] = lambda: backward_combines(
    lambda old, new: -new if old is None else old - new
)
BREAKAGES["torch: backward makes a new .grad tensor"] = lambda: backward_combines(
    lambda old, new: new if old is None else old + new
)
