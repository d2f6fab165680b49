"""Answers to "accumulate_equal", accumulation over full windows of equal micro-batches."""

import torch

from answers import outcomes, right, wrong
from answers.loops import large_batches, outcomes_of_loop
from answers.nb03b_windows import (
    accumulate,
    fabric_steps_where_i_modulo_n_is_0,
    modulo_without_a_tail,
    zeroes_at_the_top_of_the_loop,
)

right("accumulate_equal")(accumulate)


@right("accumulate_equal")
def accumulate_equal(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for number, batch in enumerate(batches, start=1):
        (loss_fn(model, batch) / n).backward()
        if number % n == 0:
            optimizer.step()
            optimizer.zero_grad()


@right("accumulate_equal")
def accumulate_equal_in_two_loops(model, batches, loss_fn, optimizer, n):
    iterator = iter(batches)
    for _ in range(len(batches) // n):
        model.zero_grad()
        for _ in range(n):
            loss = loss_fn(model, next(iterator))
            loss.backward(torch.tensor(1 / n, dtype=loss.dtype))
        optimizer.step()


@wrong("accumulate_equal", "loss-scale", "karpathy/nanoGPT#206")
def only_adds(model, batches, loss_fn, optimizer, n):
    accumulate_equal(model, batches, lambda model, batch: loss_fn(model, batch) * n, optimizer, n)


@wrong("accumulate_equal", "stale-gradients", "karpathy/llm.c!548")
def trusts_the_model_to_be_clean(model, batches, loss_fn, optimizer, n):
    modulo_without_a_tail(model, batches, loss_fn, optimizer, n)


@wrong("accumulate_equal", "discarded-gradients", "HorizonRobotics/alf!1788")
def zeroes_before_every_backward(model, batches, loss_fn, optimizer, n):
    zeroes_at_the_top_of_the_loop(model, batches, loss_fn, optimizer, n)


@wrong("accumulate_equal", "irregular-window", "Lightning-Fabric-docs-and-no_backward_sync-docstring")
def steps_where_i_modulo_n_is_0(model, batches, loss_fn, optimizer, n):
    fabric_steps_where_i_modulo_n_is_0(model, batches, loss_fn, optimizer, n)


@outcomes("accumulate_equal", reference=large_batches)
def outcomes_of_accumulate_equal(answer):
    return outcomes_of_loop(answer, (2, 4, 3, 1), (False, True), sizes=((2,) * 12,))
