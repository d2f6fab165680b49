from torch.nn.utils import clip_grad_norm_

from course_utils.my_loop.after_05 import windows


def train(model, batches, loss_fn, optimizer, n, weight, max_norm, scheduler):
    losses = []
    optimizer.zero_grad()
    for window in windows(batches, n):
        total = sum(weight(batch) for batch in window)
        window_loss = 0.0
        for batch in window:
            loss = loss_fn(model, batch) * (weight(batch) / total)
            loss.backward()
            window_loss += loss.item()
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(window_loss)
    return losses
