"""The exercise of *frameworks*: a loop for Accelerate, judged with a stand-in that divides as Accelerate does."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from course_utils.exercises.bench import Exercise, Seen, edits
from course_utils.exercises.loop import Case, Loop, twice
from course_utils.loops import windows


class FakeAccelerator:
    """Does what Accelerate 1.15 does to a loop on two ranks. The other one has twice as many tokens as this one."""

    num_processes = 2

    def __init__(self, n: int):
        self.gradient_accumulation_steps = n

    def backward(self, loss: Tensor) -> None:
        (loss / self.gradient_accumulation_steps).backward()

    def gather(self, count: Tensor | int) -> Tensor:
        own = torch.as_tensor(count).reshape(-1)
        return torch.cat([own, 2 * own])

    def reduce(self, count: Tensor | int, reduction: str = "sum") -> Tensor:
        total = 3 * torch.as_tensor(count)
        return total if reduction == "sum" else total / self.num_processes

    def no_sync(self, model: nn.Module) -> nullcontext:
        return nullcontext()


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


def watch(answer: Callable, case: Case) -> Seen:
    loop = Loop(case)
    loop.model.register_forward_hook(loop.observe)
    return loop.run(lambda batches: answer(FakeAccelerator(case.n), loop.model, batches, loop.optimizer))


RANKS, GATHER = " * accelerator.num_processes", "accelerator.gather(count).sum()"
FRAMEWORK_TOKENS = Exercise(
    "framework_tokens",
    "frameworks",
    watch,
    solution,
    cases=[twice(sizes, n, unit="tokens") for sizes, n in (((4, 1, 3, 2, 6), 3), ((5, 1, 4), 1), ((2, 2, 3), 4))],
    edits=[
        *edits("one-average-missing", RANKS, ""),
        *edits("own-rank", GATHER, "count"),
        *edits("own-rank/times-ranks", GATHER, "count * accelerator.num_processes"),
        *edits("wrong-scale-on-ranks", RANKS, RANKS * 2, " / accelerator.num_processes"),
    ],
)
