"""Answers to "framework_tokens": a loop for a stand-in of Accelerate."""

from functools import partial

import torch

from answers import right
from answers import wrong as _wrong
from course_utils import windows

wrong = partial(_wrong, "framework_tokens")


def update(accelerator, model, window, factor, optimizer):
    for batch in window:
        accelerator.backward(model(batch).sum() * factor)
    optimizer.step()
    optimizer.zero_grad()


@right("framework_tokens")
def as_in_the_guide(accelerator, model, batches, optimizer):
    iterator, n = iter(batches), accelerator.gradient_accumulation_steps
    optimizer.zero_grad()
    left = len(batches)
    while left:
        window = [next(iterator) for _ in range(min(n, left))]
        left -= len(window)
        total = accelerator.gather(torch.tensor(sum(map(len, window)))).sum().item()
        for k, batch in enumerate(window):
            with accelerator.no_sync(model) if k < len(window) - 1 else torch.enable_grad():
                accelerator.backward(model(batch).sum() * n * accelerator.num_processes / total)
        optimizer.step()
        optimizer.zero_grad()


@right("framework_tokens")
def by_reduce_and_shares(accelerator, model, batches, optimizer):
    n = accelerator.gradient_accumulation_steps
    for window in windows(batches, n):
        mean_total = accelerator.reduce(torch.tensor(float(sum(map(len, window)))), "mean")
        optimizer.zero_grad()
        for batch in window:
            accelerator.backward(model(batch).mean() * len(batch) / mean_total * n)
        optimizer.step()


def per_window(factor):
    """A loop with windows of its own, which multiplies each sum by `factor(accelerator, window, total)`."""

    def loop(accelerator, model, batches, optimizer):
        optimizer.zero_grad()
        for window in windows(batches, accelerator.gradient_accumulation_steps):
            total = accelerator.gather(torch.tensor(sum(map(len, window)))).sum()
            update(accelerator, model, window, factor(accelerator, window, total), optimizer)

    return loop


@wrong("token-weights")
def the_guides_first_loop(accelerator, model, batches, optimizer):
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).mean())
            optimizer.step()
            optimizer.zero_grad()


@wrong("stale-gradients")
def without_zeroing(accelerator, model, batches, optimizer):
    n = accelerator.gradient_accumulation_steps
    for window in windows(batches, n):
        total = accelerator.gather(torch.tensor(sum(map(len, window)))).sum()
        for batch in window:
            accelerator.backward(model(batch).sum() * n * accelerator.num_processes / total)
        optimizer.step()


@wrong("irregular-window")
def ahead_of_accumulate(accelerator, model, batches, optimizer):
    n = accelerator.gradient_accumulation_steps
    optimizer.zero_grad()
    for window in windows(batches, n):
        total = accelerator.gather(torch.tensor(sum(map(len, window)))).sum()
        for batch in window:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).sum() * n * accelerator.num_processes / total)
                optimizer.step()
                optimizer.zero_grad()


@wrong("wrong-type")
def a_generator(accelerator, model, batches, optimizer):
    yield from batches


@wrong("not-attempted")
def nothing(accelerator, model, batches, optimizer): ...


RANKS = ("one-average-missing", "own-rank", "own-rank", "wrong-scale-on-ranks", "wrong-scale-on-ranks")
FACTORS = (
    lambda a, window, total: a.gradient_accumulation_steps / total,
    lambda a, window, total: a.gradient_accumulation_steps / sum(map(len, window)),
    lambda a, window, total: a.gradient_accumulation_steps * a.num_processes / sum(map(len, window)),
    lambda a, window, total: a.gradient_accumulation_steps * a.num_processes**2 / total,
    lambda a, window, total: a.gradient_accumulation_steps / a.num_processes / total,
)
for bug, factor in zip(RANKS, FACTORS, strict=True):
    wrong(bug)(per_window(factor))
wrong("loss-scale")(per_window(lambda a, window, total: a.num_processes / total))
wrong("loss-scale")(per_window(lambda a, window, total: len(window) * a.num_processes / total))


@wrong("leftover-gradients")
def without_the_last_window(accelerator, model, batches, optimizer):
    n = accelerator.gradient_accumulation_steps
    optimizer.zero_grad()
    total = 0
    for window in windows(batches, n):
        if total:
            optimizer.step()
            optimizer.zero_grad()
        total = accelerator.gather(torch.tensor(sum(map(len, window)))).sum()
        for batch in window:
            accelerator.backward(model(batch).sum() * n * accelerator.num_processes / total)
