"""Answers to "logged_loss", a loop that logs the mean loss of each window."""

from itertools import islice

import torch

from answers import edited, right, wrong
from course_utils import train_epoch, windows


@right("logged_loss")
def logged_loss(model, batches, loss_fn, optimizer, n):
    losses = []
    for window in windows(batches, n):
        optimizer.zero_grad()
        total = sum(len(batch) for batch in window)
        window_loss = 0.0
        for batch in window:
            loss = loss_fn(model, batch) * len(batch) / total
            loss.backward()
            window_loss += loss.item()
        optimizer.step()
        losses.append(window_loss)
    return losses


@right("logged_loss")
def logged_loss_in_tensors(model, batches, loss_fn, optimizer, n):
    losses = []
    for start in range(0, len(batches), n):
        window = batches[start : start + n]
        weights = torch.tensor([float(len(batch)) for batch in window], dtype=torch.float64)
        weights /= weights.sum()
        log = torch.zeros(len(window), dtype=torch.float64)
        for k, batch in enumerate(window):
            loss = loss_fn(model, batch)
            (loss * weights[k]).backward()
            log[k] = loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(log @ weights)
    return losses


@right("logged_loss")
def logged_loss_as_a_generator(model, batches, loss_fn, optimizer, n):
    for start in range(0, len(batches), n):
        total = logged = 0
        for batch in batches[start : start + n]:
            loss = loss_fn(model, batch) * len(batch)
            loss.backward()
            total += len(batch)
            logged += loss.item()
        for p in model.parameters():
            p.grad /= total
        optimizer.step()
        optimizer.zero_grad()
        yield logged / total


@right("logged_loss")
def logged_loss_of_a_closure(model, batches, loss_fn, optimizer, n):
    def gradient_of(window):
        def closure():
            optimizer.zero_grad()
            parts = []
            for batch in window:
                loss = loss_fn(model, batch) * (len(batch) / sum(map(len, window)))
                loss.backward()
                parts.append(loss.detach())
            return sum(parts)

        return closure

    return [float(optimizer.step(gradient_of(window))) for window in windows(batches, n)]


@right("logged_loss")
def logged_loss_before_the_update(model, batches, loss_fn, optimizer, n):
    source, logged = iter(batches), ()
    while window := list(islice(source, n)):
        with torch.no_grad():
            logged += (loss_fn(model, torch.cat(window)).item(),)
        optimizer.zero_grad()
        for batch in window:
            loss_fn(model, batch).backward(torch.tensor(len(batch) / sum(map(len, window)), dtype=torch.float64))
        optimizer.step()
    return logged


@right("logged_loss")
def logged_loss_of_the_helper(model, batches, loss_fn, optimizer, n):
    return train_epoch(model, batches, loss_fn, optimizer, n)


def logger(log):
    """A right training loop whose log of a window is `log(its losses, the sizes of its micro-batches, n)`."""

    def answer(model, batches, loss_fn, optimizer, n):
        logged = []
        for window in windows(batches, n):
            sizes, losses = list(map(len, window)), []
            for batch in window:
                loss = loss_fn(model, batch)
                (loss * len(batch) / sum(sizes)).backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
            logged.append(log(losses, sizes, n))
        return logged

    return answer


wrong("logged_loss", "last-only")(logger(lambda losses, sizes, n: losses[-1]))
wrong(
    "logged_loss", "last-only", "pytorch-ignite", "Lightning-AI/pytorch-lightning#2569", "deepspeedai/DeepSpeed#1107"
)(logger(lambda losses, sizes, n: losses[-1] / n))
wrong("logged_loss", "divided-by-n")(logger(lambda losses, sizes, n: sum(losses) / n))
wrong("logged_loss", "divided-by-n", "verl-project/verl!436")(logger(lambda losses, sizes, n: sum(losses) / n / n))
wrong("logged_loss", "not-divided", "huggingface/transformers#11919")(logger(lambda losses, sizes, n: sum(losses)))
wrong("logged_loss", "token-weights")(logger(lambda losses, sizes, n: sum(losses) / len(losses)))
wrong("logged_loss", "wrong-type")(lambda *loop: sum(logged_loss(*loop)))
wrong("logged_loss", "wrong-length")(lambda *loop: logged_loss(*loop)[:1])
wrong("logged_loss", "wrong-length")(lambda *loop: [0.0, *logged_loss(*loop)])
wrong("logged_loss", "low-precision")(lambda *loop: [round(loss, 3) for loss in logged_loss(*loop)])
wrong("logged_loss", "low-precision")(lambda *loop: [f"{loss:.2f}" for loss in logged_loss(*loop)])
wrong("logged_loss", "wrong-order")(lambda *loop: logged_loss(*loop)[::-1])
wrong("logged_loss", "wrong-order")(lambda *loop: [0.0, *logged_loss(*loop)[:-1]])
wrong("logged_loss", "wrong-type")(lambda *loop: [*logged_loss(*loop), None])
wrong("logged_loss", "irregular-window")(
    lambda model, batches, loss, opt, n: logged_loss(model, batches[:n], loss, opt, n)
)
wrong("logged_loss", "wrong-value")(lambda *loop: [torch.tensor(loss).exp() for loss in logged_loss(*loop)])
wrong("logged_loss", "not-attempted")(lambda *loop: logged_loss(*loop) and None)
wrong("logged_loss", "whole-epoch")(lambda *loop: [logged_loss(*loop)] and whole_epoch(*loop))
wrong("logged_loss", "not-divided")(
    logger(lambda losses, sizes, n: sum(loss * size for loss, size in zip(losses, sizes, strict=True)))
)
wrong("logged_loss", "first-only")(logger(lambda losses, sizes, n: losses[0]))
wrong("logged_loss", "largest-only")(logger(lambda losses, sizes, n: max(losses)))


def whole_epoch(model, batches, loss_fn, optimizer, n):
    """The mean loss of the epoch, for every window."""
    whole = loss_fn(model, torch.cat(batches)).item()
    return [whole for _ in range(0, len(batches), n)]


@wrong("logged_loss", "wrong-weights", says="these are the losses after each update")
def logs_after_the_update(model, batches, loss_fn, optimizer, n):
    losses = []
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) * len(batch) / sum(map(len, window))).backward()
        optimizer.step()
        with torch.no_grad():
            losses.append(sum(loss_fn(model, batch).item() * len(batch) for batch in window) / sum(map(len, window)))
    return losses


@wrong("logged_loss", "missing-backward")
def logs_and_does_not_train(model, batches, loss_fn, optimizer, n):
    return [loss_fn(model, torch.cat(window)).item() for window in windows(batches, n)]


@wrong("logged_loss", "wrong-weights", says="these are the losses at the start of the epoch")
def logs_before_the_epoch_begins(model, batches, loss_fn, optimizer, n):
    losses = [loss_fn(model, torch.cat(window)).item() for window in windows(batches, n)]
    logged_loss(model, batches, loss_fn, optimizer, n)
    return losses


@wrong("logged_loss", "leftover-gradients")
def logs_and_steps_full_windows_only(model, batches, loss_fn, optimizer, n):
    return logged_loss(model, batches[: len(batches) // n * n], loss_fn, optimizer, n)


@wrong("logged_loss", "changed-input")
def logs_rightly_and_empties_the_list(model, batches, loss_fn, optimizer, n):
    losses = logged_loss(model, batches, loss_fn, optimizer, n)
    del batches[:]
    return losses


@wrong("logged_loss", "smoothed")
def smooths_the_log(*loop):
    smooth = []
    for loss in logged_loss(*loop):
        smooth.append(loss if not smooth else 0.9 * smooth[-1] + 0.1 * loss)
    return smooth


@wrong("logged_loss", "not-reset")
def logs_the_mean_since_the_start(*loop):
    losses = logged_loss(*loop)
    return [sum(losses[: k + 1]) / (k + 1) for k in range(len(losses))]


wrong("logged_loss", "not-attempted")(lambda *loop: [])


@wrong("logged_loss", "per-micro-batch")
def logs_every_micro_batch(model, batches, loss_fn, optimizer, n):
    logged_loss(model, batches, loss_fn, optimizer, n)
    return [loss_fn(model, batch).item() for batch in batches]


@wrong("logged_loss", "not-reset")
def never_resets_the_sum(model, batches, loss_fn, optimizer, n):
    losses = logged_loss(model, batches, loss_fn, optimizer, n)
    return [sum(losses[: k + 1]) for k in range(len(losses))]


MEAN = "loss_fn(model, batch)"
SHARE = "* len(batch) / total"
ITEM = "loss.item()"
EACH = "loss_fn(model, b) * len(b) / total"
for bug, *changes in (
    ("held-graphs", (ITEM, "loss")),
    ("held-graphs", ("in window:", "in [window]:"), (f"{MEAN} {SHARE}", f"sum({EACH} for b in window)")),
    ("loss-scale", (SHARE, ""), (ITEM, f"{ITEM} {SHARE}")),
    ("token-weights", (SHARE, "/ len(window)"), (ITEM, f"{ITEM} * len(window) {SHARE}")),
    ("stale-gradients", ("optimizer.zero_grad()", "pass")),
    ("discarded-gradients", ("loss.backward()", "optimizer.zero_grad(); loss.backward()")),
):
    wrong("logged_loss", bug)(edited(logged_loss, *changes))
