"""Answers to "logged_loss", a loop that logs the mean loss of each window."""

import torch

from answers import outcomes, right, wrong
from answers.loops import large_batches_with_a_log, outcomes_of_loop
from course_utils import windows


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
wrong("logged_loss", "leftover-gradients")(lambda *loop: logged_loss(*loop)[:1])
wrong("logged_loss", "not-attempted")(lambda *loop: [])


@wrong("logged_loss", "per-micro-batch")
def logs_every_micro_batch(model, batches, loss_fn, optimizer, n):
    logged_loss(model, batches, loss_fn, optimizer, n)
    return [loss_fn(model, batch).item() for batch in batches]


@wrong("logged_loss", "not-reset")
def never_resets_the_sum(model, batches, loss_fn, optimizer, n):
    losses = logged_loss(model, batches, loss_fn, optimizer, n)
    return [sum(losses[: k + 1]) for k in range(len(losses))]


@wrong("logged_loss", "discarded-gradients")
def logs_rightly_and_trains_wrongly(model, batches, loss_fn, optimizer, n):
    losses = []
    for window in windows(batches, n):
        total, window_loss = sum(map(len, window)), 0.0
        for batch in window:
            optimizer.zero_grad()
            loss = loss_fn(model, batch) * len(batch) / total
            loss.backward()
            window_loss += loss.item()
        optimizer.step()
        losses.append(window_loss)
    return losses


@outcomes("logged_loss", reference=large_batches_with_a_log)
def outcomes_of_logged_loss(answer):
    return outcomes_of_loop(answer, (2, 3, 4, 1, 9), (False,))
