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


wrong("bf16_window", "leftover-gradients")(edited("bf16_window", ("    optimizer.step()\n", "")))
SUMS = "[torch.zeros_like(copy) for copy in master]"
MEAN, COPY = "copy.grad = total / samples", "p.copy_(copy)"
for bug, *changes in (
    ("loss-scale", (MEAN, "copy.grad = total")),
    ("low-precision", ("total += p.grad", "total.copy_(total.bfloat16() + p.grad)")),
    ("lost-updates", (COPY, f"copy.copy_(copy.bfloat16()), {COPY}")),
    ("wrong-format", (COPY, "p.data = copy.clone()")),
    ("discarded-gradients", ("total += p.grad", "total.copy_(p.grad)")),
    ("stale-gradients", (SUMS, f"optimizer.__dict__.setdefault('sums', {SUMS})")),
    ("stale-copies", (COPY, "pass")),
    ("wrong-value", ("        model.zero_grad()", "        pass")),
):
    wrong("bf16_window", bug)(edited("bf16_window", *changes))
wrong("bf16_window", "wrong-value")(edited("bf16_window", ("optimizer.step()", "optimizer.step(), optimizer.step()")))
