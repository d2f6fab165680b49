"""Answers to "framework_tokens": a loop for a stand-in of Accelerate."""

from contextlib import nullcontext

import torch

from answers import edited, right, wrong
from course_utils import windows


@right("framework_tokens")
def by_reduce_and_shares(accelerator, model, batches, optimizer):
    n = accelerator.gradient_accumulation_steps
    for window in windows(batches, n):
        mean_total = accelerator.reduce(torch.tensor(float(sum(map(len, window)))), "mean")
        optimizer.zero_grad()
        for batch in window:
            with nullcontext() if batch is window[-1] else accelerator.no_sync(model):
                accelerator.backward(model(batch).mean() * len(batch) / mean_total * n)
        optimizer.step()


STEP = "        optimizer.step()\n"
for bug, change in (
    ("stale-gradients", ("        optimizer.zero_grad()\n", "")),
    ("loss-scale", (" * n *", " *")),
    ("loss-scale", ("accelerator.gather(count).sum()", "count")),
    ("loss-scale", (" * accelerator.num_processes", "")),
    ("loss-scale", (" * accelerator.num_processes", " / accelerator.num_processes")),
    ("token-weights", (".sum() * n * accelerator.num_processes / total", ".mean()")),
    ("leftover-gradients", (STEP, f"        if window[-1] is batches[-1]: break\n{STEP}")),
    ("extra-exchanges", ("accelerator.no_sync(model) if number < len(window) else nullcontext()", "nullcontext()")),
    ("extra-exchanges", ("number < len(window)", "number > 1")),
):
    wrong("framework_tokens", bug)(edited("framework_tokens", change))
