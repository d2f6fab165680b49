"""Answers to "gan_updates": the two updates of a GAN."""

from answers import edited, right, wrong
from solutions import solution


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


ZERO = "            optimizer.zero_grad()"
STEP = "            optimizer.step()\n"
SHARE = "* len(batch) / total"
for bug, *changes in (
    ("stale-gradients", (ZERO, "            pass"), (STEP, f"{STEP}{ZERO}\n")),  # Lightning-AI/pytorch-lightning#591
    ("stale-gradients", (ZERO, "            if loss is g_loss: optimizer.zero_grad()")),
    ("stale-gradients", (ZERO, "            if loss is d_loss: d.zero_grad(), g.zero_grad()")),
    ("token-weights", (SHARE, "/ len(window)")),
    (
        "wrong-value",
        (ZERO, f"            for net, own in ((d, d_loss), (g, g_loss)): net.requires_grad_(loss is own)\n{ZERO}"),
    ),
    (
        "wrong-value",
        ("((d_loss, d_optimizer), (g_loss, g_optimizer))", "((g_loss, g_optimizer), (d_loss, d_optimizer))"),
    ),
):
    wrong("gan_updates", bug)(edited("gan_updates", *changes))

wrong("gan_updates", "changed-input")(lambda *a: solution("gan_updates")(*a) or a[2].clear())
