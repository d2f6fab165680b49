from torch.nn.utils import clip_grad_norm_

from course_utils.my_loop.after_05 import windows


def train(model, batches, loss_fn, optimizer, n, weight, max_norm, scheduler, autocast, scaler):
    losses = []
    optimizer.zero_grad()
    for window in windows(batches, n):
        total = sum(weight(batch) for batch in window)
        window_loss = 0.0
        for batch in window:
            with autocast:
                loss = loss_fn(model, batch) * (weight(batch) / total)
            scaler.scale(loss).backward()
            window_loss += loss.item()
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), max_norm)
        if norm.isfinite():
            scaler.step(optimizer)
            scheduler.step()
        scaler.update()
        optimizer.zero_grad()
        losses.append(window_loss)
    return losses
