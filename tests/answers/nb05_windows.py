"""Answers to "accumulate", over windows that may be short, of micro-batches of any size."""

import torch

from answers import edited, right, wrong
from course_utils import windows
from course_utils.loops import items


@right("accumulate")
def accumulate(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for window in windows(batches, n):
        total = sum(items(batch) for batch in window)
        for batch in window:
            loss = loss_fn(model, batch) * (items(batch) / total)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@right("accumulate")
def accumulate_by_modulo(model, batches, loss_fn, optimizer, n):
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        start = i - i % n
        total = sum(len(b) for b in batches[start : start + n])
        (loss_fn(model, batch) * len(batch) / total).backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()


@right("accumulate")
def accumulate_sums_and_divide_the_gradient(model, batches, loss_fn, optimizer, n):
    for start in range(0, len(batches), n):
        optimizer.zero_grad()
        seen = 0
        for batch in batches[start : start + n]:
            seen += len(batch)
            (loss_fn(model, batch) * len(batch)).backward()
        for p in model.parameters():
            p.grad /= seen
        optimizer.step()


@right("accumulate")
def accumulate_without_backward(model, batches, loss_fn, optimizer, n):
    weights = [p for p in model.parameters() if p.requires_grad]
    for window in windows(batches, n):
        sums, count = [torch.zeros_like(p) for p in weights], 0
        for batch in window:
            for total, grad in zip(sums, torch.autograd.grad(loss_fn(model, batch), weights), strict=True):
                total += grad * len(batch)
            count += len(batch)
        for p, total in zip(weights, sums, strict=True):
            p.grad = total / count
        optimizer.step()


@right("accumulate")
def accumulate_with_a_closure(model, batches, loss_fn, optimizer, n):
    for window in windows(batches, n):

        def closure(window=window):
            optimizer.zero_grad()
            total, logged = sum(map(len, window)), 0.0
            for batch in window:
                loss = loss_fn(model, batch) * len(batch) / total
                loss.backward()
                logged += loss.detach()
            return logged

        optimizer.step(closure)


@right("accumulate")
def accumulate_a_running_mean(model, batches, loss_fn, optimizer, n):
    seen = 0
    for i, batch in enumerate(batches):
        if i % n == 0:
            seen = 0
            for p in model.parameters():
                p.grad = None
        for p in model.parameters():
            if p.grad is not None:
                p.grad *= seen / (seen + len(batch))
        seen += len(batch)
        (loss_fn(model, batch) * (len(batch) / seen)).backward()
        if i % n == n - 1 or i == len(batches) - 1:
            optimizer.step()


def in_both(bug, *sources, says=""):
    """The function is wrong in "accumulate", and in "accumulate_equal" by the same name."""

    def keep(answer):
        wrong("accumulate_equal", bug)(answer)
        return wrong("accumulate", bug, *sources, says=says)(answer)

    return keep


# One loop that asks for the remainder. A right one, with the tail, is "accumulate_by_modulo".


@wrong(
    "accumulate", "leftover-gradients", "timoschick/pet#36", "tomhosking/torchseq#8", "huggingface/transformers#2995"
)
def without_a_tail(model, batches, loss_fn, optimizer, n):
    for i, batch in enumerate(batches):
        (loss_fn(model, batch) / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()


ZERO = "optimizer.zero_grad()"
STEP = "optimizer.step()"
ZERO_FIRST = ("    for", f"    {ZERO}\n    for")
WITH_THE_LAST = ("% n == 0", "% n == 0 or i + 1 == len(batches)")
zeroes_at_the_top = edited(without_a_tail, (ZERO, "pass"), ("(loss_fn", f"{ZERO}; (loss_fn"), WITH_THE_LAST)
fabric_steps_where_i_modulo_n_is_0 = edited(without_a_tail, (" / n", ""), ("(i + 1)", "i"))


# The solution, with something changed: which micro-batches are in a window.


def popped(batches, n):
    while batches:
        yield [batches.pop(0) for _ in batches[:n]]


WINDOWS = "windows(batches, n)"
for bug, others in (("missing-backward", "[window[-1:] for window in windows(batches, n)]"),):
    in_both(bug)(edited(accumulate, (WINDOWS, others)))

# How much a micro-batch counts.
SHARE = "(items(batch) / total)"
for bug, share in (("token-weights", "len(window[0]) / total"),):
    wrong("accumulate", bug)(edited(accumulate, (SHARE, f"({share})")))

# What is done with it.
BACKWARD = "loss.backward()"
for bug, says, *changes in (("wrong-type", "none of its lines has run", (BACKWARD, f"{BACKWARD}; yield loss.item()")),):
    in_both(bug, says=says)(edited(accumulate, *changes))
