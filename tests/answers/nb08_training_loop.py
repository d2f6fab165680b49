"""Answers to "scheduled": a training loop with a schedule that counts updates."""

from itertools import islice

from answers import edited, right, wrong
from solutions import solution


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


SHARE = "(len(batch) / total)"
WINDOWS = "windows(batches, n)"
EPOCH = "range(epochs):\n"
BACKWARD = "loss.backward()"
STEP = "            optimizer.step()\n"
SCHEDULE = "            scheduler.step()\n"
ZERO = "            optimizer.zero_grad()\n"
UPDATES = "epochs * math.ceil(len(batches) / n)"
for bug, *changes in (
    ("wrong-length", (UPDATES, "epochs * len(batches)")),
    ("wrong-length", (UPDATES, "epochs * (len(batches) // n)")),
    ("scheduler-cadence", (SCHEDULE, "")),
    (
        "leftover-gradients",
        (EPOCH, f"{EPOCH}        optimizer.zero_grad()\n"),
        (STEP, f"            if len(window) < n: break\n{STEP}"),
    ),
    ("stale-gradients", (ZERO, "")),
    ("token-weights", (SHARE, "(1 / len(window))")),
    ("loss-scale", (f" * {SHARE}", "")),
    ("irregular-window", (WINDOWS, "windows(batches, 1)")),
    ("discarded-gradients", (STEP, ZERO + STEP)),
    ("loss-scale", (STEP, f"            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n{STEP}")),
    ("irregular-window", (WINDOWS, "windows(batches[::-1], n)")),
    ("low-precision", (SHARE, "round(len(batch) / total, 4)")),
    ("empty-step", (BACKWARD, "with suppress(AttributeError): loss.backwards()")),
    ("wrong-type", (UPDATES, "'x'")),
    ("raises", (f"optimizer, {UPDATES}", UPDATES)),
    ("scheduler-cadence", (SCHEDULE, ""), (BACKWARD, f"{BACKWARD}; scheduler.step()")),
):
    wrong("scheduled", bug)(edited("scheduled", *changes))
wrong("scheduled", "changed-input")(lambda *a: solution("scheduled")(*a) or a[1].clear())
