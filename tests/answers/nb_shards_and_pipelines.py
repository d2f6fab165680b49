"""Answers to "pipeline_update": one update from several calls of a pipeline."""

import torch
from torch.distributed.pipelining import Schedule1F1B
from torch.nn import functional as F

from answers import edited, right, wrong


@right("pipeline_update")
def with_scale_grads_undone_for_one_schedule_a_call(stage, optimizer, calls, n):
    total = sum((targets != -100).sum() for _, targets in calls)

    def loss_fn(scores, targets):
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum") * n / total

    sums = [torch.zeros_like(p) for p in stage.submod.parameters()]
    for inputs, targets in calls:
        optimizer.zero_grad()
        Schedule1F1B(stage, n, loss_fn=loss_fn).step(inputs, target=targets)
        for p, held in zip(stage.submod.parameters(), sums, strict=True):
            p.grad = held.add_(p.grad).clone()
    optimizer.step()


VALID = "(targets != -100)"
CHOSEN = "scores.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]"
SUM = 'F.cross_entropy(*flat, reduction="sum") / total'
CALL = "        schedule.step(inputs, target=targets)\n"
STEP = "    optimizer.step()\n"
for bug, *changes in (
    ("irregular-window", (CALL, f"        optimizer.zero_grad()\n{CALL}    {STEP}"), (f"\n{STEP}", "\n")),
    ("leftover-gradients", (STEP, "")),
    ("stale-gradients", ("    optimizer.zero_grad()\n", "")),
    ("loss-scale", ("scale_grads=False", "scale_grads=True")),
    ("discarded-gradients", (STEP, f"    optimizer.zero_grad()\n{STEP}")),
    ("wrong-value", (SUM, f"-({CHOSEN} * {VALID}).sum() / {VALID}.sum() * ({VALID}.sum() / total)")),
):
    wrong("pipeline_update", bug)(edited("pipeline_update", *changes))
