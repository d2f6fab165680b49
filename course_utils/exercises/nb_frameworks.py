"""The exercise of *frameworks*: a loop for Accelerate, judged with a stand-in."""

from contextlib import nullcontext

import torch

from course_utils.exercises.judging import compare, exercise
from course_utils.exercises.loop import Case, Loop, twice
from course_utils.loops import windows

TIMES = "{0.name} is {0.times[0]:g} times what it should be"


class RankCase(Case):
    bugs = (
        (lambda u: u.even and u.times[0] in (1.5, 3), "own-rank", TIMES,
         "`accelerator.gather(count)` has an entry for each rank. What is the window's total?"),
        (lambda u: u.even and u.times[0] == 0.5, "one-average-missing", TIMES,
         "DDP divides the sum of the ranks' gradients by `num_processes`. What undoes that?"),
        (lambda u: u.even and u.times[0] in (0.25, 2), "wrong-scale-on-ranks", TIMES,
         "Follow one token: your factor, the division in `backward`, then the mean over ranks."),
    )  # fmt: skip


CASES = [
    twice(sizes, n, RankCase, unit="tokens") for sizes, n in (((4, 1, 3, 2, 6), 3), ((5, 1, 4), 1), ((2, 2, 3), 4))
]
HINTS = {"loss-scale": "What does `accelerator.backward` divide by, also in a short window? Undo exactly that."}


class FakeAccelerator:
    """A stand-in for Accelerate 1.15 on two ranks, of which the other has twice the tokens."""

    num_processes = 2

    def __init__(self, n):
        self.gradient_accumulation_steps = n

    def backward(self, loss):
        (loss / self.gradient_accumulation_steps).backward()

    def gather(self, count):
        own = torch.as_tensor(count).reshape(-1)
        return torch.cat([own, 2 * own])

    def reduce(self, count, reduction="sum"):
        return self.gather(count).sum() / (1 if reduction == "sum" else self.num_processes)

    def no_sync(self, model):
        return nullcontext()


def solution(accelerator, model, batches, optimizer):
    n = accelerator.gradient_accumulation_steps
    for window in windows(batches, n):
        total = accelerator.gather(sum(map(len, window))).sum()
        for batch in window:
            accelerator.backward(model(batch).sum() * n * accelerator.num_processes / total)
        optimizer.step()
        optimizer.zero_grad()


def watch(answer, case):
    loop = Loop(case)
    loop.model.register_forward_hook(loop.observe)
    return loop.run(lambda batches: answer(FakeAccelerator(case.n), loop.model, batches, loop.optimizer))


@exercise
def framework_tokens(answer):
    compare(watch, answer, solution, CASES, hints=HINTS)
    return "unequal tokens, short windows, two ranks: every token counts 1 / total after the mean."
