"""Answers to "scheduled" and "gan_updates": a schedule that counts updates, and the two updates of a GAN."""

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

# A training loop with a schedule that counts updates.


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
    ("leftover-gradients", (EACH_EPOCH, "for batches in [batches * epochs]:")),
    ("stale-gradients", (f"            {ZERO}", "            pass")),
    ("stale-gradients", (f"    {ZERO}\n    for", "    for")),
    ("token-weights", (SHARE, "/ len(window)")),
    ("loss-scale", (SHARE, "")),
    ("loss-scale", (SHARE, "/ n")),
    ("irregular-window", (WINDOWS, "windows(batches, 1)")),
    ("irregular-window", (WINDOWS, "[batches[:1], *windows(batches[1:], n)]")),
    ("discarded-gradients", (STEP, f"{ZERO}; {STEP}")),
    ("discarded-gradients", (BACKWARD, f"{ZERO}; {BACKWARD}")),
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
    ("wrong-length", "a schedule for 4 updates, 6 will run", (UPDATES, "len(batches) // n")),
    (
        "scheduler-cadence",
        "N = 2, 2 epochs: scheduler steps before each update [2, 4, 6, 8, 10, 12], expected [0, 1, 2, 3, 4, 5]",
        (SCHEDULE, ""),
        (BACKWARD, f"{BACKWARD}; scheduler.step()"),
    ),
    (
        "scheduler-cadence",
        "before each update [0, 0, 0, 1, 1, 1], expected",  # 0, not -0
        (SCHEDULE, "        scheduler.step()"),
    ),
    (
        "scheduler-cadence",
        "before each update [0, 0, 0, 5, 5, 5], expected [0, 1, 2, 3, 4, 5]: one scheduler step should follow",
        (SCHEDULE, "        for _ in range(5): scheduler.step()"),
    ),
):
    wrong("scheduled", bug, says=says)(edited(scheduled, *changes))

for bug, answer in (
    ("not-attempted", lambda *_: None),
    ("not-attempted", lambda *a: a[6](a[3], 4) and None),
    ("empty-step", lambda *a: a[3].step()),
    ("changed-input", lambda *a: scheduled(*a) or a[1].clear()),
    ("raises", lambda model, batches: None),
):
    wrong("scheduled", bug)(answer)


# The two updates of a GAN.


@right("gan_updates")
def gan_by_freezing(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    generator.zero_grad(), discriminator.zero_grad()
    for window in windows(batches, n):
        total = sum(map(len, window))
        generator.requires_grad_(False)
        for batch in window:
            (d_loss(batch) * len(batch) / total).backward()
        generator.requires_grad_(True)
        d_optimizer.step(), d_optimizer.zero_grad()
        discriminator.requires_grad_(False)
        for batch in window:
            (g_loss(batch) * len(batch) / total).backward()
        discriminator.requires_grad_(True)
        g_optimizer.step(), g_optimizer.zero_grad()


@right("gan_updates")
def gan_by_inputs(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    for start in range(0, len(batches), n):
        window = batches[start : start + n]
        for net, loss, optimizer in ((discriminator, d_loss, d_optimizer), (generator, g_loss, g_optimizer)):
            net.zero_grad()
            for batch in window:
                share = len(batch) / sum(map(len, window))
                (share * loss(batch)).backward(inputs=list(net.parameters()))
            optimizer.step()


@right("gan_updates")
def gan_by_zeroing_everything(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    parameters = [*generator.parameters(), *discriminator.parameters()]
    iterator = iter(batches)
    while window := list(islice(iterator, n)):
        for loss, optimizer in ((d_loss, d_optimizer), (g_loss, g_optimizer)):
            for p in parameters:
                p.grad = None
            for batch in window:
                (loss(batch) * len(batch) / sum(map(len, window))).backward()
            optimizer.step()


@right("gan_updates")
def gan_by_autograd_grad(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    for window in windows(batches, n):
        for net, loss, optimizer in ((discriminator, d_loss, d_optimizer), (generator, g_loss, g_optimizer)):
            parameters = list(net.parameters())
            for p in parameters:
                p.grad = torch.zeros_like(p)
            for batch in window:
                gradients = torch.autograd.grad(loss(batch) * len(batch) / sum(map(len, window)), parameters)
                for p, gradient in zip(parameters, gradients, strict=True):
                    p.grad += gradient
            optimizer.step()


@right("gan_updates")
def gan_that_divides_last(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    def update(net, loss, optimizer, window):
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        for batch in window:
            (loss(batch) * len(batch)).backward()
        items = sum(len(batch) for batch in window)
        for p in net.parameters():
            p.grad /= items
        optimizer.step()

    for at in range(0, len(batches), n):
        update(discriminator, d_loss, d_optimizer, batches[at : at + n])
        update(generator, g_loss, g_optimizer, batches[at : at + n])


def gan(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    players = [(discriminator, d_loss, d_optimizer), (generator, g_loss, g_optimizer)]
    for window in windows(batches, n):
        for net, loss_of, optimizer in players:
            net.zero_grad()
            for batch in window:
                loss = loss_of(batch) * len(batch) / sum(map(len, window))
                loss.backward()
            optimizer.step()


CLEAR = "net.zero_grad()"
OTHER = "other = generator if net is discriminator else discriminator"
wrong(  # as in Lightning-AI/pytorch-lightning#591
    "gan_updates",
    "foreign-gradients",
    says="N = 2: update 2 of the discriminator holds gradients of the generator's loss",
)(edited(gan, (CLEAR, ""), (STEP, f"{STEP}; {CLEAR}")))
for bug, *changes in (
    ("stale-gradients", (CLEAR, f"if net is generator: {CLEAR}")),  # Hsintien-Ng/idinvert_pytorch-reproduced#1
    (
        "stale-gradients",
        (CLEAR, f"{OTHER}; other.requires_grad_(False)"),
        (STEP, f"other.requires_grad_(); {STEP}; {CLEAR}"),
    ),
    ("discarded-gradients", (BACKWARD, f"{CLEAR}; {BACKWARD}")),
    ("loss-scale", (SHARE, "/ n")),
    ("loss-scale", (SHARE, "")),
    ("token-weights", (SHARE, "/ len(window)")),
    ("irregular-window", (WINDOWS, "windows(batches, 1)")),
    ("leftover-gradients", (WINDOWS, "[window for window in windows(batches, n) if len(window) == n]")),
    ("leftover-gradients", ("in players", "in players[1:]")),
    ("wrong-order", ("in players", "in players[::-1]")),
    (
        "wrong-order",
        (BACKWARD, "loss.backward(inputs=list(net.parameters()))"),
        (f"            {STEP}", "        d_optimizer.step(); g_optimizer.step()"),
    ),
    ("orphan-parameters", (CLEAR, f"{CLEAR}; {OTHER}; other.requires_grad_(False)")),
    ("orphan-parameters", (CLEAR, f"{CLEAR}; discriminator.requires_grad_(net is discriminator)")),
    ("held-graphs", ("in window:", "in [torch.cat(window)]:")),
    (
        "held-graphs",
        ("in window:", "in [window]:"),
        (f"loss_of(batch) {SHARE}", "sum(loss_of(b) * len(b) for b in window) / sum(map(len, window))"),
    ),
    ("clip-limit", (STEP, f"nn.utils.clip_grad_norm_(net.parameters(), 1.0); {STEP}")),
    ("low-precision", (SHARE, "* round(len(batch) / sum(map(len, window)), 4)")),
    (
        "wrong-batches",
        (WINDOWS, "zip(windows(batches, n), [*windows(batches, n)][::-1])"),
        ("for window", "for first, second"),
        (CLEAR, f"{CLEAR}; window = first if net is discriminator else second"),
    ),
    ("missing-backward", ("in window:", "in window[-1:] if net is generator else window:")),
    ("empty-step", (BACKWARD, "with suppress(AttributeError): loss.backwards()")),
):
    wrong("gan_updates", bug)(edited(gan, *changes))

for bug, answer in (
    ("not-attempted", lambda *_: None),
    ("empty-step", lambda *a: a[5].step() or a[6].step()),
    ("changed-input", lambda *a: gan(*a) or a[2].clear()),
    ("raises", lambda generator, discriminator: None),
):
    wrong("gan_updates", bug)(answer)


@wrong("gan_updates", "irregular-window")
def generator_once_per_epoch(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    for loss, optimizer, chosen in ((d_loss, d_optimizer, windows(batches, n)), (g_loss, g_optimizer, [batches])):
        for window in chosen:
            optimizer.zero_grad()
            for batch in window:
                (loss(batch) * len(batch) / sum(map(len, window))).backward()
            optimizer.step()


@wrong("gan_updates", "raises")
def both_forward_passes_first(generator, discriminator, batches, g_loss, d_loss, g_optimizer, d_optimizer, n):
    """The generator's losses are computed with the discriminator as it was before its step."""
    for window in windows(batches, n):
        losses = [[loss(batch) * len(batch) / sum(map(len, window)) for batch in window] for loss in (d_loss, g_loss)]
        for optimizer, parts in zip((d_optimizer, g_optimizer), losses, strict=True):
            optimizer.zero_grad()
            for part in parts:
                part.backward()
            optimizer.step()
