"""The exercise of *frameworks*: a loop for Accelerate, judged with a stand-in that divides as Accelerate does."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import isgenerator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_utils.practice.exercises import exercise
from course_utils.practice.judging import Mistake, close
from course_utils.practice.updates import Expected, recorded_tally

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


@exercise(
    "framework_tokens",
    hints={
        "token-weights": "Which loss has no divisor of its own, a mean or a sum? What should all tokens be divided by?",
        "loss-scale": "What does `accelerator.backward` divide by, also in a short window? Undo exactly that.",
        "leftover-gradients": "Does a step follow the last window?",
        "irregular-window": "With windows of your own, leave `accumulate` out: it has its own idea of where they end.",
        "own-rank": "`accelerator.gather(count)` has an entry for each rank. What is the window's total?",
        "one-average-missing": "DDP divides the sum of the ranks' gradients by `num_processes`. What undoes that?",
        "wrong-scale-on-ranks": "Follow one token: your factor, the division in `backward`, then the mean over ranks.",
    },
)
def _framework_tokens(answer: Callable) -> str:
    for sizes, n in (((2, 2, 2, 2), 2), ((4, 1, 3, 2, 6, 2), 2), ((3, 1, 2, 5, 1), 3), ((5, 1, 4), 1), ((2, 7), 4)):
        _judge(answer, sizes, n)
    for sizes, n in (((2, 2, 2, 2), 2), ((4, 1, 3, 2, 6), 2), ((3, 1, 2, 5, 1, 1), 4)):
        _judge(answer, sizes, n, ranks=2)
    return "unequal tokens, short windows, one rank and two: every token counts 1 / total after the mean."


def _judge(answer: Callable, sizes: Sequence[int], n: int, ranks: int = 1) -> None:
    """Two epochs on a tally, whose gradient says how much each token counts on this rank."""
    tally, optimizer, recorder = recorded_tally(sum(sizes), 0.5)
    for _ in range(2):
        recorder.start_epoch()
        accelerator = FakeAccelerator(n, ranks)
        batches = _Loader(torch.arange(sum(sizes)).split(list(sizes)), accelerator)
        if isgenerator(answer(accelerator, tally, batches, _Prepared(optimizer, accelerator))):
            raise Mistake("wrong-type", "your function has a `yield`, so none of its lines has run: it is a generator.")
    observed, expected = recorder.observed(), Expected(sizes, n, unit="tokens")
    case = f"micro-batches of {list(sizes)} tokens, N = {n}" + (f", {ranks} ranks" if ranks > 1 else "")
    if ranks == 1:
        expected.compare(observed, case)
        return
    every = 1 + _OTHERS  # this rank's tokens are one of so many parts; its share is doubled, since DDP halves it
    rows = [row * every / ranks for row in observed.rows]
    for factor, bug, hint in (
        (1 / ranks, "one-average-missing", "every token counts half: DDP's mean over the ranks is not undone"),
        (every / ranks, "own-rank", "the tokens of this rank only are counted"),
        (every, "own-rank", "the tokens of this rank only are counted"),
        (
            every / ranks**2,
            "own-rank",
            "this rank's count is multiplied by the ranks, which hold different ones",
        ),
        (ranks, "wrong-scale-on-ranks", "every token counts twice"),
        (ranks**-2, "wrong-scale-on-ranks", "every token counts a quarter: the mean over ranks is taken twice"),
    ):
        if close(rows, [row * factor for row in expected.rows]):
            raise Mistake(bug, f"{case}: {hint}.")
    observed.rows = rows
    expected.compare(observed, case)
