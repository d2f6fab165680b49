"""Random programs of passes, zeroing, clipping and steps against a ledger kept by hand.

`EXAMPLES=1000 pytest tests/observe/test_random_programs.py` tries a thousand of each kind.
"""

import math
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product

import pytest
import torch
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam

import properties
from course_utils import record
from hooked import hooks

LANES = ["SGD", "Adam", "no optimizer"]  # the names under which the trace knows them


# The ledger: what a trace should say, from what the program has done and the gradients as they are


@dataclass
class Book:
    """What is known by hand of one lane."""

    weights: list[nn.Parameter]
    story: list[tuple[str, float, int]] = field(default_factory=list)  # event, norm, held
    held: list[int] = field(default_factory=list)  # the numbers of the micro-batches in .grad
    unused: list[int] = field(default_factory=list)
    updates: list[tuple[int, ...]] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    written: bool = False  # by hand, since the last look
    nonzero: bool = False  # at the last look

    def norm(self) -> float:
        return math.sqrt(sum(float(p.grad.square().sum()) for p in self.weights if p.grad is not None))

    def gradients(self) -> list:
        return [None if p.grad is None else p.grad.tolist() for p in self.weights]

    def note(self, event: str) -> None:
        self.story.append((event, self.norm(), len(self.held)))

    def look(self) -> None:
        """What was written to the gradients shows at the next event."""
        if self.written and self.norm():
            self.note("change")
        elif self.written:
            self.lost += self.unused
            self.held, self.unused = [], []
            if self.nonzero:
                self.note("zero")
        self.written, self.nonzero = False, bool(self.norm())

    def receive(self, number: int) -> None:
        self.held.append(number)
        self.unused.append(number)
        self.nonzero = True
        self.note("backward")


class Split(torch.autograd.Function):
    """Between two layers: its backward pass fails if it is told to."""

    @staticmethod
    def forward(ctx, x, fails):
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.fails:
            raise RuntimeError
        return gradient, None


class Chain(nn.Module):
    """Layers in a row, of which only those of `parts` are called."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x, fails):
        for k, layer in enumerate(self.layers):
            x = layer(Split.apply(x, fails) if k else x)
        return x.sum()


def by_hand(zero):
    def change(parameters, _):
        for p in parameters:
            if p.grad is not None:
                zero(p)

    return change


ZEROING = {
    "none": by_hand(lambda p: setattr(p, "grad", None)),
    "zero_": by_hand(lambda p: p.grad.zero_()),
    "data": by_hand(lambda p: p.grad.data.zero_()),
    "zeros": by_hand(lambda p: setattr(p, "grad", torch.zeros_like(p))),
    "zero_grad": lambda parameters, owner: owner.zero_grad(),
    "zero_grad to zeros": lambda parameters, owner: owner.zero_grad(set_to_none=False),
}
WRITING = {
    "halve": by_hand(lambda p: p.grad.mul_(0.5)),
    "turn": by_hand(lambda p: p.grad.neg_()),  # the norm stays
    "clip": lambda parameters, _: nn.utils.clip_grad_norm_(parameters, 1e-3),
}
lane = st.integers(0, 2)
parts = st.lists(lane, min_size=1, max_size=3, unique=True)
failing = st.sampled_from([False, False, False, True])
OPERATIONS = st.one_of(
    st.tuples(st.just("forward"), parts, failing),
    st.tuples(st.just("backward")),
    st.tuples(st.just("micro_batch"), parts),
    st.tuples(st.just("micro_batch"), parts),
    st.tuples(st.just("write"), lane, st.sampled_from(list(WRITING))),
    st.tuples(st.just("zero"), lane, st.sampled_from(list(ZEROING))),
    st.tuples(st.just("step"), st.integers(0, 1)),
)
PROGRAMS = st.lists(OPERATIONS, max_size=30) | st.lists(OPERATIONS, min_size=20, max_size=30)


class Program:
    """Does the operations and keeps the books."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layers = [nn.Linear(2, 2).double() for _ in LANES]
        self.books = [Book(list(layer.parameters())) for layer in self.layers]
        self.losses: list[torch.Tensor] = []
        self.number = 0

    def attach(self) -> None:
        self.optimizers = [SGD(self.layers[0].parameters(), lr=0.1), Adam(self.layers[1].parameters(), lr=0.1)]

    def look(self) -> None:
        for book in self.books:
            book.look()

    def forward(self, parts: list[int], fails: bool) -> None:
        self.losses.append(Chain([self.layers[k] for k in parts])(torch.randn(2, 2, dtype=torch.float64), fails))

    def backward(self) -> None:
        if not self.losses:
            return
        self.look()
        self.number += 1
        before = [book.gradients() for book in self.books]
        with suppress(RuntimeError):  # also where a step has changed weights since the forward pass
            self.losses.pop().backward()
        for book, gradients in zip(self.books, before, strict=True):
            if book.gradients() != gradients:
                book.receive(self.number)

    def micro_batch(self, parts: list[int]) -> None:
        self.forward(parts, False)
        self.backward()

    def zero(self, k: int, style: str) -> None:
        self.write(k, style)
        if style.startswith("zero_grad"):
            self.look()

    def write(self, k: int, style: str) -> None:
        (ZEROING | WRITING)[style](self.books[k].weights, [*self.optimizers, self.layers[2]][k])
        self.books[k].written = True

    def step(self, k: int) -> None:
        self.look()
        self.books[k].note("step")
        self.optimizers[k].step()
        self.books[k].updates.append(tuple(self.books[k].held))
        self.books[k].unused = []


def test_a_trace_says_what_was_done_and_changes_no_bit():
    def holds(drawn: tuple[list, bool]) -> None:
        operations, before = drawn
        alone, program, hooked = Program(), Program(), hooks()
        alone.attach()
        torch.manual_seed(1)
        for name, *how in operations:
            getattr(alone, name)(*how)
        torch.manual_seed(1)
        if before:
            program.attach()
        with record() as trace, record() as inner:
            if not before:
                program.attach()
            for name, *how in operations:
                getattr(program, name)(*how)
        program.look()
        assert hooks() == hooked
        for seen, (name, book) in product((trace, inner), zip(LANES, program.books, strict=True)):
            found = [event for event in seen.events if event.lane == name]
            assert [(event.kind, event.held) for event in found] == [(kind, held) for kind, _, held in book.story]
            assert [event.norm for event in found] == pytest.approx([norm for _, norm, _ in book.story], rel=1e-12)
            if found:
                assert seen.updates(name) == [held for kind, _, held in book.story if kind == "step"]
                assert seen.leftover(name) == len(book.unused)
        for watched, other in zip(program.books, alone.books, strict=True):
            assert watched.gradients() == other.gradients()
            assert all(map(torch.equal, watched.weights, other.weights))

    properties.check(holds, st.tuples(PROGRAMS, st.booleans()), "trace", examples=40)
