"""Answers to "gan_updates": the two updates of a GAN."""

from answers import edited, right, wrong
from course_utils import windows
from solutions import solution


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


WINDOWS = "windows(batches, n)"
PLAYERS = "((d_loss, d_optimizer), (g_loss, g_optimizer))"
ZERO = "            optimizer.zero_grad()"
BACKWARD = "(loss(batch) * len(batch) / total).backward()"
STEP = "            optimizer.step()\n"
SHARE = "* len(batch) / total"
CLIP = "nn.utils.clip_grad_norm_(optimizer.param_groups[0]['params'], 1.0)"
for bug, *changes in (
    ("foreign-gradients", (ZERO, "            pass"), (STEP, f"{STEP}{ZERO}\n")),  # Lightning-AI/pytorch-lightning#591
    ("stale-gradients", (ZERO, "            if loss is g_loss: optimizer.zero_grad()")),
    ("discarded-gradients", (BACKWARD, f"optimizer.zero_grad(); {BACKWARD}")),
    ("loss-scale", (SHARE, "/ n")),
    ("token-weights", (SHARE, "/ len(window)")),
    ("irregular-window", (WINDOWS, "windows(batches, 1)")),
    ("leftover-gradients", (WINDOWS, f"[window for window in {WINDOWS} if len(window) == n]")),
    ("wrong-order", (PLAYERS, f"{PLAYERS}[::-1]")),
    ("orphan-parameters", (ZERO, f"            (g if loss is d_loss else d).requires_grad_(False)\n{ZERO}")),
    ("held-graphs", ("in window:\n", "in [torch.cat(window)]:\n")),
    ("clip-limit", (STEP, f"            {CLIP}\n{STEP}")),
    ("low-precision", (SHARE, "* round(len(batch) / total, 4)")),
    (
        "wrong-batches",
        (
            "for window in windows(batches, n)",
            "for window, other in zip(windows(batches, n), [*windows(batches, n)][::-1])",
        ),
        ("in window:\n", "in (window if loss is d_loss else other):\n"),
        (SHARE, "* len(batch) / sum(map(len, window if loss is d_loss else other))"),
    ),
    ("missing-backward", ("in window:\n", "in window[-1:] if loss is g_loss else window:\n")),
    ("empty-step", (BACKWARD, "with suppress(AttributeError): loss(batch).backwards()")),
):
    wrong("gan_updates", bug)(edited("gan_updates", *changes))

wrong("gan_updates", "changed-input")(lambda *a: solution("gan_updates")(*a) or a[2].clear())
