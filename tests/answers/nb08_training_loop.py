"""Answers to "scheduled": a training loop with a schedule that counts updates."""

import math
from itertools import islice, zip_longest

import torch

from answers import edited, right, wrong
from course_utils import train_epoch, windows

ZERO = "optimizer.zero_grad()"
BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
SHARE = "* len(batch) / sum(map(len, window))"
WINDOWS = "windows(batches, n)"


@right("scheduled")
def scheduled_by_the_helper(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    scheduler = make_scheduler(optimizer, epochs * len(list(windows(batches, n))))
    for _ in range(epochs):
        train_epoch(model, batches, loss_fn, optimizer, n, len, scheduler=scheduler)


@right("scheduled")
def scheduled_by_modulo(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    ends = {k for k in range(len(batches)) if (k + 1) % n == 0 or k + 1 == len(batches)}
    scheduler = make_scheduler(optimizer, epochs * len(ends))
    for _ in range(epochs):
        model.zero_grad()
        for k, batch in enumerate(batches):
            start = k - k % n
            total = sum(map(len, batches[start : start + n]))
            loss_fn(model, batch).backward(torch.tensor(len(batch) / total, dtype=torch.float64))
            if k in ends:
                optimizer.step()
                model.zero_grad(set_to_none=False)
                scheduler.step()


@right("scheduled")
def scheduled_without_the_last_scheduler_step(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    updates = epochs * -(-len(batches) // n)
    scheduler, done = make_scheduler(optimizer, updates), 0
    for _ in range(epochs):
        iterator = iter(batches)
        while window := list(islice(iterator, n)):
            optimizer.zero_grad()
            for batch in window:
                (loss_fn(model, batch) * len(batch)).backward()
            for p in model.parameters():
                p.grad /= sum(map(len, window))
            if done:
                scheduler.step()
            optimizer.step()
            done += 1


@right("scheduled")
def scheduled_with_closures(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    scheduler = make_scheduler(optimizer, math.ceil(len(batches) / n) * epochs)
    for window in [*windows(batches, n)] * epochs:

        def closure(window=window):
            optimizer.zero_grad()
            loss = sum(loss_fn(model, batch) * len(batch) for batch in window) / sum(map(len, window))
            loss.backward()
            return loss

        optimizer.step(closure)
        scheduler.step()


@right("scheduled")
def scheduled_by_zip(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    missing = object()
    grouped = [[b for b in group if b is not missing] for group in zip_longest(*[iter(batches)] * n, fillvalue=missing)]
    scheduler = make_scheduler(optimizer=optimizer, updates=float(len(grouped) * epochs))
    for window in grouped * epochs:
        for p in model.parameters():
            p.grad = None
        sizes = torch.tensor([len(batch) for batch in window], dtype=torch.float32)
        for batch, share in zip(window, sizes / sizes.sum(), strict=True):  # shares in float32
            (loss_fn(model, batch) * share).backward()
        optimizer.step()
        scheduler.step()


def scheduled(model, batches, loss_fn, optimizer, n, epochs, make_scheduler):
    scheduler = make_scheduler(optimizer, math.ceil(len(batches) / n) * epochs)
    optimizer.zero_grad()
    for _ in range(epochs):
        for window in windows(batches, n):
            for batch in window:
                loss = loss_fn(model, batch) * len(batch) / sum(map(len, window))
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()


SCHEDULE = "            scheduler.step()"
EACH_EPOCH = "for _ in range(epochs):"
UPDATES = "math.ceil(len(batches) / n)"
for bug, *changes in (
    ("wrong-length", (UPDATES, "len(batches)")),
    (
        "leftover-gradients",
        (EACH_EPOCH, f"{EACH_EPOCH}\n        {ZERO}"),
        (STEP, f"if len(window) < n: break\n            {STEP}"),
    ),
    ("stale-gradients", (f"            {ZERO}", "            pass")),
    ("token-weights", (SHARE, "/ len(window)")),
    ("loss-scale", (SHARE, "")),
    ("irregular-window", (WINDOWS, "windows(batches, 1)")),
    ("discarded-gradients", (STEP, f"{ZERO}; {STEP}")),
    ("clip-limit", (STEP, f"nn.utils.clip_grad_norm_(model.parameters(), 1.0); {STEP}")),
    (
        "not-reset",
        (EACH_EPOCH, f"{EACH_EPOCH}\n        {ZERO}"),
        (STEP, f"if window[0] is not batches[0]: continue\n            {STEP}"),
    ),
    ("wrong-batches", (WINDOWS, "windows(batches[::-1], n)")),
    ("low-precision", (SHARE, "* round(len(batch) / sum(map(len, window)), 4)")),
    ("empty-step", (BACKWARD, "with suppress(AttributeError): loss.backwards()")),
    ("wrong-type", (f"{UPDATES} * epochs", "'x'")),
    ("raises", (f"optimizer, {UPDATES}", UPDATES)),
):
    wrong("scheduled", bug)(edited(scheduled, *changes))

for bug, says, *changes in (
    (
        "scheduler-cadence",
        "",
        (SCHEDULE, ""),
        (BACKWARD, f"{BACKWARD}; scheduler.step()"),
    ),
):
    wrong("scheduled", bug, says=says)(edited(scheduled, *changes))

for bug, answer in (
    ("not-attempted", lambda *_: None),
    ("changed-input", lambda *a: scheduled(*a) or a[1].clear()),
):
    wrong("scheduled", bug)(answer)
