"""Every fact's cell fails when the fact is made false, as its `falsifier` in data/facts says.

That is an edit of the cell, or one of `BREAKAGES`: context managers that break PyTorch.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cells import run
from course import FACTS, NOTEBOOKS
from notebooks import claims

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


def run_broken(source: str, namespace: dict, falsifier: dict[str, str]) -> AssertionError | None:
    """The assertion that fails when the cell runs with the falsifier at work; None if none does."""
    try:
        match falsifier:
            case {"old": old, "new": new}:
                if old not in source:
                    return None
                run(source.replace(old, new), namespace)
            case {"breakage": name}:
                with BREAKAGES[name]():
                    run(source, namespace)
    except AssertionError as error:
        return error
    except Exception:
        return None  # it breaks, but not because an assertion says what is false
    return None


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_each_facts_cell_fails_when_the_fact_is_false(name, as_in_a_kernel):
    facts = {fact.id: fact.falsifier for fact in FACTS.values() if fact.notebook == name and fact.falsifier}
    shown, failed = set(), set()
    namespace = {"__name__": "__main__"}
    for cell in NOTEBOOKS[name].code:
        before, random_state = dict(namespace), torch.get_rng_state()
        run(cell.source, namespace)
        after = torch.get_rng_state()
        for claim in claims(cell):
            shown.add(claim)
            torch.set_rng_state(random_state)
            if claim in facts and run_broken(cell.source, dict(before), facts[claim]) is not None:
                failed.add(claim)
        torch.set_rng_state(after)
    silent = {claim: facts[claim] for claim in shown & facts.keys() - failed}
    assert not silent, f"these cells do not fail when their fact is made false: {silent}"
    assert failed == facts.keys(), f"facts of {name} without a cell: {facts.keys() - shown}"
