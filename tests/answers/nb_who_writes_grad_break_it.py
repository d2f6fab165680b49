"""Answers to "break_it": a loop that makes every call and discards every gradient, with a .grad at every step."""

import torch
from torch import nn

from answers import edited, right, wrong


@right("break_it")
def zeros_between_backward_and_step(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()


@right("break_it")
def closure_that_zeroes_last(model, batches, loss_fn, optimizer):
    for batch in batches:

        def closure(batch=batch):
            loss = loss_fn(model, batch)
            loss.backward()
            optimizer.zero_grad(set_to_none=False)
            return loss

        optimizer.step(closure)


@right("break_it")
def clips_to_nothing(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.0)
        optimizer.step()


@right("break_it")
def zeroes_each_by_hand(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        for p in model.parameters():
            p.grad.zero_()
        optimizer.step()


@right("break_it")
def new_zeros_between(model, batches, loss_fn, optimizer):
    for batch in batches:
        loss_fn(model, batch).backward()
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()


BACKWARD = "loss.backward()"
ZERO = "optimizer.zero_grad(set_to_none=False)"
STEP = "optimizer.step()"
for bug, *changes in (
    ("still-right", (ZERO, "pass"), ("loss = ", "optimizer.zero_grad(); loss = ")),
    ("still-right", (ZERO, "pass"), (BACKWARD, f"{ZERO}; {BACKWARD}")),
    ("none-at-the-step", (ZERO, "optimizer.zero_grad()")),
    ("none-at-the-step", (ZERO, "for p in model.parameters(): p.grad = None")),
    ("nothing-to-discard", (BACKWARD, "(loss * 0).backward()")),
    ("raises", (BACKWARD, "loss.detach().backward()")),
    (
        "nothing-to-discard",
        ("    for", "    for p in model.parameters(): p.register_hook(lambda grad: grad * 0)\n    for"),
        (f"        {ZERO}\n", ""),
    ),
    ("some-get-through", (ZERO, f"if batch is not batches[0]: {ZERO}")),
):
    wrong("break_it", bug)(edited(zeros_between_backward_and_step, *changes))

for bug, says, *changes in (
    ("another-bug", "stale-gradients", (ZERO, "pass")),
    ("another-bug", "loss-scale", (BACKWARD, "optimizer.zero_grad(); (loss / 2).backward()"), (ZERO, "pass")),
    ("calls-missing", "0 steps", (STEP, "pass")),
    ("calls-missing", "0 backward passes", (BACKWARD, "pass")),
    ("calls-missing", "4 steps", ("in batches", "in batches[1:]")),
    (
        "calls-missing",
        "5 backward passes and 0 steps",
        ("    for", "    another = torch.optim.SGD(model.parameters(), lr=0.1)\n    for"),
        (STEP, "another.step()"),
    ),
    ("calls-missing", "1 steps", (f"        {STEP}", f"    {STEP}")),
    ("calls-missing", "10 steps", (STEP, f"{STEP}; {STEP}")),
):
    wrong("break_it", bug, says=says)(edited(zeros_between_backward_and_step, *changes))
