"""Answers to "gan_updates": the two updates of a GAN."""

from itertools import islice

import torch

from answers import edited, right, wrong
from course_utils import windows

BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
SHARE = "* len(batch) / sum(map(len, window))"
WINDOWS = "windows(batches, n)"


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
)(edited(gan, (CLEAR, ""), (STEP, f"{STEP}; {CLEAR}")))
for bug, *changes in (
    ("stale-gradients", (CLEAR, f"if net is generator: {CLEAR}")),  # Hsintien-Ng/idinvert_pytorch-reproduced#1
    ("discarded-gradients", (BACKWARD, f"{CLEAR}; {BACKWARD}")),
    ("loss-scale", (SHARE, "/ n")),
    ("token-weights", (SHARE, "/ len(window)")),
    ("irregular-window", (WINDOWS, "windows(batches, 1)")),
    ("leftover-gradients", (WINDOWS, "[window for window in windows(batches, n) if len(window) == n]")),
    ("wrong-order", ("in players", "in players[::-1]")),
    ("orphan-parameters", (CLEAR, f"{CLEAR}; {OTHER}; other.requires_grad_(False)")),
    ("held-graphs", ("in window:", "in [torch.cat(window)]:")),
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
    ("changed-input", lambda *a: gan(*a) or a[2].clear()),
    ("raises", lambda generator, discriminator: None),
):
    wrong("gan_updates", bug)(answer)
