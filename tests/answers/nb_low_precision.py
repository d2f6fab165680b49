"""Answers to "bf16_window": a bfloat16 model with float32 sums and float32 copies."""

import torch

from answers import edited, right, wrong


@right("bf16_window")
def with_hooks_that_are_removed(model, master, window, loss_fn, optimizer):
    def move(p):
        p.main_grad += p.grad
        p.grad = None

    hooks = []
    for p in model.parameters():
        p.main_grad = torch.zeros_like(p, dtype=torch.float32)
        hooks.append(p.register_post_accumulate_grad_hook(move))
    for batch in window:
        loss_fn(model, batch).backward()
    for hook in hooks:
        hook.remove()
    for p, held in zip(model.parameters(), master, strict=True):
        held.grad = p.main_grad / sum(map(len, window))
    optimizer.step()
    with torch.no_grad():
        for p, held in zip(model.parameters(), master, strict=True):
            p.copy_(held)


@right("bf16_window")
def with_autograd_grad_into_the_copies(model, master, window, loss_fn, optimizer):
    samples = sum(len(batch) for batch in window)
    for batch in window:
        gradients = torch.autograd.grad(loss_fn(model, batch), list(model.parameters()))
        for held, gradient in zip(master, gradients, strict=True):
            share = gradient.float() / samples
            held.grad = share if held.grad is None else held.grad + share
    optimizer.step()
    optimizer.zero_grad()
    for p, held in zip(model.parameters(), master, strict=True):
        p.data.copy_(held)


STEP = "    optimizer.step()\n"
for bug, says, *changes in (
    ("stale-copies", "rounded", ("p.copy_(copy)", "pass")),
    ("wrong-format", "", ("p.copy_(copy)", "p.data = copy.clone()")),
    ("leftover-gradients", "", (STEP, "")),
    ("irregular-window", "", (STEP, STEP + STEP)),
    ("stale-gradients", "", ("        model.zero_grad()", "        pass")),
):
    wrong("bf16_window", bug, says)(edited("bf16_window", *changes))
