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


SUMS = "[torch.zeros_like(copy) for copy in master]"
COPY, STEP = "p.copy_(copy)", "    optimizer.step()\n"
for bug, says, *changes in (
    ("leftover-gradients", "", (STEP, "")),
    ("wrong-value", "the copies", ("copy.grad = total / samples", "copy.grad = total")),
    ("wrong-value", "window 1", ("total += p.grad", "total.copy_(total.bfloat16() + p.grad)")),
    ("wrong-value", "window 2", (SUMS, f"optimizer.__dict__.setdefault('sums', {SUMS})")),
    ("wrong-value", "the copies", (COPY, f"copy.copy_(copy.bfloat16()), {COPY}")),
    ("wrong-value", "the copies", (STEP, STEP + STEP)),
    ("wrong-format", "", (COPY, "p.data = copy.clone()")),
    ("stale-copies", "", (COPY, "pass")),
):
    wrong("bf16_window", bug, says)(edited("bf16_window", *changes))
