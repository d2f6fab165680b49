"""Answers to "two_bugs": a loop with a short window and a clip."""

from torch.nn.utils import clip_grad_norm_

from answers import edited, right, wrong
from solutions import solution


@right("two_bugs")
def by_modulo(model, batches, loss_fn, optimizer, n, max_norm):
    tail = len(batches) % n
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        held = tail if i >= len(batches) - tail else n
        loss = loss_fn(model, batch) / held
        loss.backward()
        if (i + 1) % n == 0 or i + 1 == len(batches):
            clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


WINDOWS = "windows(batches, n)"
ZERO = "optimizer.zero_grad()"
BACKWARD = "(loss_fn(model, batch) / len(window)).backward()"
SHARE = " / len(window)"
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), max_norm)"
for bug, says, *changes in (
    ("missing-backward", "", ("in window:", "in window[-1:]:")),
    ("loss-scale", "", (CLIP, "nn.utils.clip_grad_norm_(model.parameters(), 1.0)")),
    ("clip-timing", "", ("model.parameters()", "list(model.parameters())[:1]")),
    ("clip-timing", "instead of 0.1", (CLIP, "pass")),
    ("leftover-gradients", "", (WINDOWS, f"[window for window in {WINDOWS} if len(window) == n]")),
    ("discarded-gradients", "", (BACKWARD, f"{ZERO}; {BACKWARD}")),
    ("stale-gradients", "", (ZERO, "pass")),
    ("irregular-window", "", (WINDOWS, "windows(batches, 1)")),
    ("wrong-value", "", (SHARE, ""), (CLIP, f"next(model.parameters()).grad.div_(len(window)); {CLIP}")),
    ("empty-step", "", (".backward()", ".detach()")),
    ("loss-scale", "", (SHARE, " / n")),
    ("clip-timing", "", (CLIP, f"    {CLIP}")),
    (
        "held-graphs",
        "bytes are kept for the backward pass at once",
        ("in window:", "in [window]:"),
        ("loss_fn(model, batch)", "sum(loss_fn(model, b) for b in window)"),
    ),
):
    wrong("two_bugs", bug, says)(edited("two_bugs", *changes))

wrong("two_bugs", "changed-input")(lambda *a: solution("two_bugs")(*a) or a[1].clear())
