"""Answers to "ddp_window": one window on two ranks."""

import inspect
from contextlib import ExitStack, nullcontext

import torch
import torch.distributed as dist

from answers import edited, right, wrong


def ddp_window(model, window, loss_fn, optimizer):
    total = torch.tensor(float(sum(len(x) for x, _ in window)))
    dist.all_reduce(total)
    for k, batch in enumerate(window, start=1):
        with model.no_sync() if k < len(window) else nullcontext():
            share = dist.get_world_size() * len(batch[0]) / total
            (loss_fn(model, batch) * share).backward()
    optimizer.step()
    optimizer.zero_grad()


right("ddp_window")(ddp_window)


@right("ddp_window")
def first_in_the_context_then_the_last(model, window, loss_fn, optimizer):
    optimizer.zero_grad()
    counts = torch.tensor([len(x) for x, _ in window], dtype=torch.float64)
    mean = counts.sum()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    *first, last = zip(window, counts / mean, strict=True)
    with model.no_sync():
        for batch, share in first:
            (loss_fn(model, batch) * share).backward()
    (loss_fn(model, last[0]) * last[1]).backward()
    optimizer.step()


@right("ddp_window")
def scales_the_gradient_at_the_end(model, window, loss_fn, optimizer):
    with ExitStack() as held:
        held.enter_context(model.no_sync())
        for k, batch in enumerate(window):
            if k + 1 == len(window):
                held.close()
            (loss_fn(model, batch) * len(batch[0])).backward()
    total = torch.tensor([sum(len(x) for x, _ in window)])
    dist.all_reduce(total)
    for p in model.parameters():
        p.grad *= dist.get_world_size() / total.item()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


@right("ddp_window")
def by_the_flag_before_the_forward(model, window, loss_fn, optimizer):
    counts = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor(float(sum(len(y) for _, y in window))))
    total = sum(counts)
    for k, batch in enumerate(window):
        model.require_backward_grad_sync = k == len(window) - 1
        loss = loss_fn(model, batch) * len(batch[1]) * len(counts) / total
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@right("ddp_window")
def averages_by_hand(model, window, loss_fn, optimizer):
    total = torch.tensor(float(sum(len(x) for x, _ in window)))
    dist.all_reduce(total)
    with model.no_sync():
        for batch in window:
            (loss_fn(model, batch) * len(batch[0]) / total).backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat, grads := [torch.empty_like(p) for p in model.parameters()])
    for p, grad in zip(model.parameters(), grads, strict=True):
        p.grad = grad
    optimizer.step()
    optimizer.zero_grad()


SHARE = "dist.get_world_size() * len(batch[0]) / total"
HELD = "model.no_sync() if k < len(window) else nullcontext()"
PASS = """            (loss_fn(model, batch) * share).backward()
"""
LATE = """            loss = loss_fn(model, batch) * share
        with model.no_sync() if k < len(window) else nullcontext():
            loss.backward()
"""

for name, bug, says, *changes in (
    ("every micro-batch", "sync-cadence", "", (HELD, "nullcontext()")),
    ("never", "ranks-differ", "", (HELD, "model.no_sync()")),
    (
        "own count",
        "token-weights",
        "",
        ("    dist.all_reduce(total)\n", ""),
        (SHARE, "len(batch[0]) / total"),
    ),
    ("without the ranks", "loss-scale", "0.5 times", ("dist.get_world_size() * ", "")),
    ("steps in the loop", "irregular-window", "", ("    optimizer.step()", "        optimizer.step()")),
    ("never zeroes", "stale-gradients", "before", ("    optimizer.zero_grad()\n", "")),
    ("no step", "leftover-gradients", "no step", ("    optimizer.step()\n", "")),
    (
        "zeroes first",
        "empty-step",
        "",
        ("    optimizer.step()", "    optimizer.zero_grad(); optimizer.step()"),
    ),
    (
        "rank 0 alone counts",
        "waits",
        "different collectives",
        ("    dist.all_reduce", "    dist.get_rank() or dist.all_reduce"),
    ),
    (
        "rank 1 looks too far",
        "raises",
        "rank 1, IndexError",
        ("    total =", "    window[3 * dist.get_rank()]\n    total ="),
    ),
    (
        "averages twice",
        "by-hand",
        "",
        ("    optimizer.step()", "    for p in model.parameters(): dist.all_reduce(p.grad)\n    optimizer.step()"),
    ),
    ("nothing", "not-attempted", "", (inspect.getsource(ddp_window).partition("\n")[2], "    ...\n")),
):
    made = edited(ddp_window, *changes)
    made.__name__ = name.replace(" ", "_")
    wrong("ddp_window", bug, says=says)(made)
