"""The exercise of *frameworks*: a loop for Accelerate, judged with a stand-in that divides as Accelerate does."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_utils.loops import windows
from course_utils.practice.bench import Exercise, Seen, edits
from course_utils.practice.loop import Case, Loop

_OTHERS = 2  # the imagined other rank has so many times the tokens of this one


class FakeAccelerator:
    """Does what Accelerate 1.15 does to a loop: divides, gates the optimizer's steps, and gathers counts.

    Args:
        n: What `backward` divides by, and the window of `accumulate()`.
        ranks: 1, or 2 with a second rank that holds twice as many tokens in every micro-batch.
    """

    def __init__(self, n: int, ranks: int = 1):
        self.gradient_accumulation_steps, self.num_processes = n, ranks
        self.sync_gradients = True
        self.is_last = False  # whether the loader has just given its last micro-batch
        self._seen = 0

    def backward(self, loss: Tensor) -> None:
        (loss / self.gradient_accumulation_steps).backward()

    def gather(self, count: Any) -> Tensor:
        own = torch.as_tensor(count).reshape(-1)
        return own if self.num_processes == 1 else torch.cat([own, _OTHERS * own])

    def reduce(self, count: Any, reduction: str = "sum") -> Tensor:
        total = self.gather(count).reshape(self.num_processes, -1).sum(0).reshape(torch.as_tensor(count).shape)
        return total if reduction == "sum" else total / self.num_processes

    def no_sync(self, model: nn.Module) -> nullcontext:
        return nullcontext()

    @contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        self._seen = 0 if self.is_last else self._seen + 1
        self.sync_gradients = self.is_last or self._seen % self.gradient_accumulation_steps == 0
        yield


class _Prepared:
    """An optimizer that steps and zeroes only where its accelerator says so."""

    def __init__(self, optimizer: Optimizer, accelerator: FakeAccelerator):
        self._optimizer, self._accelerator = optimizer, accelerator

    def step(self) -> None:
        if self._accelerator.sync_gradients:
            self._optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._accelerator.sync_gradients:
            self._optimizer.zero_grad(set_to_none)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


class _Loader(list):
    """Tells its accelerator when it gives its last micro-batch, and forgets it when it is read to the end."""

    def __init__(self, batches: Sequence[Tensor], accelerator: FakeAccelerator):
        super().__init__(batches)
        self._accelerator = accelerator

    def __iter__(self) -> Iterator[Tensor]:
        for k, batch in enumerate(super().__iter__(), start=1):
            self._accelerator.is_last = k == len(self)
            yield batch
        self._accelerator.is_last = False


def solution(accelerator, model, batches, optimizer):
    n = accelerator.gradient_accumulation_steps
    for window in windows(batches, n):
        count = torch.tensor(sum(len(batch) for batch in window))
        total = accelerator.gather(count).sum()
        for batch in window:
            loss = model(batch).sum() * n * accelerator.num_processes / total
            accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


@dataclass(frozen=True)
class OnRanks(Case):
    """Two epochs on one rank, or on one of two."""

    ranks: int = 1

    def __str__(self) -> str:
        return super().__str__() + f", {self.ranks} ranks" * (self.ranks > 1)


def watch(answer: Callable, case: OnRanks) -> Seen:
    loop = Loop(case)
    loop.model.register_forward_hook(loop.observe)

    def call(batches: list[Tensor]) -> object:
        accelerator = FakeAccelerator(case.n, case.ranks)
        prepared = _Prepared(loop.optimizer, accelerator)
        return answer(accelerator, loop.model, _Loader(batches, accelerator), prepared)

    return loop.run(call)


RANKS, GATHER = " * accelerator.num_processes", "accelerator.gather(count).sum()"
SIZES = (2, 2, 2, 2), (4, 1, 3, 2, 6, 2), (3, 1, 2, 5, 1), (5, 1, 4), (2, 7), (4, 1, 3, 2, 6), (3, 1, 2, 5, 1, 1)
FRAMEWORK_TOKENS = Exercise(
    "framework_tokens",
    "frameworks",
    watch,
    solution,
    cases=[
        OnRanks((SIZES[place],) * 2, n, ranks=ranks, unit="tokens")
        for place, n, ranks in ((0, 2, 1), (1, 2, 1), (2, 3, 1), (3, 1, 1), (4, 4, 1), (0, 2, 2), (5, 2, 2), (6, 4, 2))
    ],
    edits=[
        *edits("one-average-missing", RANKS, ""),
        *edits("own-rank", GATHER, "count"),
        *edits("own-rank/times-ranks", GATHER, "count * accelerator.num_processes"),
        *edits("wrong-scale-on-ranks", RANKS, RANKS * 2, " / accelerator.num_processes"),
    ],
)
