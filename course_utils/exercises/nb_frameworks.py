"""The exercise of *frameworks*: a loop for Accelerate, judged with a stand-in."""

from contextlib import contextmanager

import torch

from course_utils.exercises.judging import compare, exercise
from course_utils.exercises.loop import Loop, twice
from course_utils.loops import train_epoch

CASES = [twice(sizes, n=n) for sizes, n in (((4, 1, 3, 2, 6), 3), ((5, 1, 4), 1), ((2, 2, 3), 4))]
ONCE = "DDP exchanges gradients after each micro-batch that ran outside of `no_sync(model)`. Which one should?"


class FakeAccelerator:
    """A stand-in for Accelerate 1.15 on two ranks, of which the other has twice the tokens."""

    num_processes, sync_gradients, is_fsdp2 = 2, True, False

    def __init__(self, n):
        self.gradient_accumulation_steps, self.holds, self.forward, self.back = n, False, [], []

    def backward(self, loss):
        self.back.append(self.holds)
        (loss / self.gradient_accumulation_steps).backward()

    def gather(self, count):
        own = torch.as_tensor(count).reshape(-1)
        return torch.cat([own, 2 * own])

    def reduce(self, count, reduction="sum"):
        return self.gather(count).sum() / (1 if reduction == "sum" else self.num_processes)

    def clip_grad_norm_(self, parameters, max_norm):
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    @contextmanager
    def no_sync(self, model):
        self.holds = True
        try:
            yield
        finally:
            self.holds = False


def solution(accelerator, model, batches, optimizer):
    n = accelerator.gradient_accumulation_steps  # the mean over ranks halves what this third of all tokens adds
    train_epoch(model, batches, lambda model, batch: model(batch).mean() * 2 / 3, optimizer, n, len)
    holds = [number % n != 0 and number < len(batches) for number in range(1, len(batches) + 1)]
    accelerator.forward[-len(batches) :] = holds
    accelerator.back += holds


def watch(answer, case):
    loop, accelerator = Loop(case), FakeAccelerator(case.n)
    loop.model.register_forward_pre_hook(lambda *_: accelerator.forward.append(accelerator.holds))
    seen = loop.run(lambda batches: answer(accelerator, loop.model, batches, loop.optimizer))
    return seen | {
        "no_sync() around forward passes": accelerator.forward,
        "around backward()": accelerator.back,
    }


@exercise("unequal tokens, short windows, two ranks: every token counts 1 / total after the mean, sent once a window.")
def framework_tokens(answer):
    named = dict.fromkeys(("no_sync() around forward passes", "around backward()"), ("extra-exchanges", ONCE))
    compare(watch, answer, solution, CASES, **named)
