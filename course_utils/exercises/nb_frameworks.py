"""The exercise of *frameworks*: a loop for Accelerate, judged with a stand-in."""

from contextlib import nullcontext

import torch

from course_utils.exercises.judging import compare, exercise
from course_utils.exercises.loop import Loop, twice
from course_utils.loops import train_epoch

CASES = [twice(sizes, n=n) for sizes, n in (((4, 1, 3, 2, 6), 3), ((5, 1, 4), 1), ((2, 2, 3), 4))]


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
    n = accelerator.gradient_accumulation_steps  # the mean over ranks halves what this third of all tokens adds
    train_epoch(model, batches, lambda model, batch: model(batch).mean() * 2 / 3, optimizer, n, len)


def watch(answer, case):
    loop = Loop(case)
    return loop.run(lambda batches: answer(FakeAccelerator(case.n), loop.model, batches, loop.optimizer))


@exercise("unequal tokens, short windows, two ranks: every token counts 1 / total after the mean.")
def framework_tokens(answer):
    compare(watch, answer, solution, CASES)
