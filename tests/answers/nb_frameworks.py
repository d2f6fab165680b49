"""Answers to "framework_tokens": a loop for a stand-in of Accelerate."""

import torch

from answers import edited, right, wrong
from course_utils import windows


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


@wrong("framework_tokens", "token-weights")
def the_guides_first_loop(accelerator, model, batches, optimizer):
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).mean())
            optimizer.step()
            optimizer.zero_grad()


BACKWARD = "            accelerator.backward(loss)\n"
STEP = "        optimizer.step()\n"
ZERO = "        optimizer.zero_grad()\n"
for bug, *changes in (
    ("stale-gradients", (ZERO, "")),
    (
        "irregular-window",
        (BACKWARD, f"            with accelerator.accumulate(model):\n    {BACKWARD}"),
        (STEP, f"        {STEP}"),
        (ZERO, f"        {ZERO}"),
    ),
    ("loss-scale", (" * n *", " *")),
    ("leftover-gradients", (STEP, f"        if window[-1] is batches[-1]: break\n{STEP}")),
    ("wrong-type", ("    n =", "    yield\n    n =")),
):
    wrong("framework_tokens", bug)(edited("framework_tokens", *changes))
