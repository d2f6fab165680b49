from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_

from course_utils.my_loop.after_05 import windows


def over_ranks(number, device="cpu"):
    if not dist.is_initialized():
        return number
    total = torch.tensor(float(number), dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total.item()


def train(model, batches, loss_fn, optimizer, n, weight, max_norm, scheduler, autocast, scaler):
    losses = []
    device = next(model.parameters()).device
    ranks = over_ranks(1, device)
    optimizer.zero_grad()
    for window in windows(batches, n):
        total = over_ranks(sum(weight(batch) for batch in window), device)
        window_loss = 0.0
        for number, batch in enumerate(window, start=1):
            with model.no_sync() if ranks > 1 and number < len(window) else nullcontext():
                with autocast:
                    loss = loss_fn(model, batch) * (ranks * weight(batch) / total)
                scaler.scale(loss).backward()
            window_loss += loss.item()
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), max_norm)
        if norm.isfinite():
            scaler.step(optimizer)
            scheduler.step()
        scaler.update()
        optimizer.zero_grad()
        losses.append(over_ranks(window_loss, device) / ranks)
    return losses
