"""Answers to "two_bugs": a loop with a short window and a clip."""

import torch
from torch.nn.utils import clip_grad_norm_

from answers import edited, right, wrong
from course_utils import train_epoch, windows


@right("two_bugs")
def by_windows(model, batches, loss_fn, optimizer, n, max_norm):
    for window in windows(batches, n):
        optimizer.zero_grad()
        for batch in window:
            (loss_fn(model, batch) / len(window)).backward()
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


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


@right("two_bugs")
def by_the_helper(model, batches, loss_fn, optimizer, n, max_norm):
    train_epoch(model, batches, loss_fn, optimizer, n, len, max_norm=max_norm)


@right("two_bugs")
def with_gradients_as_values(model, batches, loss_fn, optimizer, n, max_norm):
    """No .backward(), hence nothing to zero."""
    params = list(model.parameters())
    for start in range(0, len(batches), n):
        window = batches[start : start + n]
        sums = [torch.zeros_like(p) for p in params]
        for batch in window:
            for total, grad in zip(sums, torch.autograd.grad(loss_fn(model, batch), params), strict=True):
                total += grad
        scale = torch.tensor(1 / len(window))
        for p, total in zip(params, sums, strict=True):
            p.grad = total * scale
        norm = float(torch.stack([p.grad.norm() for p in params]).norm())
        for p in params:
            p.grad *= min(1.0, max_norm / (norm + 1e-6))
        optimizer.step()


@right("two_bugs")
def divides_at_the_end(model, batches, loss_fn, optimizer, n, max_norm):
    optimizer.zero_grad()
    held = 0
    for place, batch in enumerate(batches, start=1):
        loss_fn(model, batch).backward()
        held += 1
        if held == n or place == len(batches):
            grads = [p.grad for p in model.parameters()]
            torch._foreach_div_(grads, held)
            clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            held = 0


def to_the_limit_always(parameters, max_norm):
    grads = [p.grad for p in parameters]
    norm = torch.cat([grad.flatten() for grad in grads]).norm()
    torch._foreach_mul_(grads, max_norm / norm)


WINDOWS = "windows(batches, n)"
ZERO = "optimizer.zero_grad()"
BACKWARD = "(loss_fn(model, batch) / len(window)).backward()"
SHARE = " / len(window)"
CLIP = "clip_grad_norm_(model.parameters(), max_norm)"
STEP = "optimizer.step()"
for bug, *changes in (
    ("missing-backward", ("in window:", "in window[-1:]:")),
    ("low-precision", (SHARE, " * round(1 / len(window), 2)")),
    ("clip-limit", ("model.parameters()", "list(model.parameters())[:1]")),
    ("leftover-gradients", (WINDOWS, "[window for window in windows(batches, n) if len(window) == n]")),
    ("discarded-gradients", (BACKWARD, f"{ZERO}; {BACKWARD}")),
    ("stale-gradients", (ZERO, "pass")),
    ("irregular-window", (WINDOWS, "windows(batches, 1)")),
    ("wrong-value", (SHARE, ""), (CLIP, f"next(model.parameters()).grad.div_(len(window)); {CLIP}")),
    ("empty-step", (".backward()", ".detach()")),
    (
        "not-reset",
        (ZERO, f"if window[0] is batches[0]: {ZERO}"),
        (CLIP, f"if window[0] is not batches[0]: continue\n        {CLIP}"),
    ),
):
    wrong("two_bugs", bug)(edited(by_windows, *changes))

for bug, says, *changes in (
    ("loss-scale", "", (SHARE, " / n")),
    ("clip-timing", "", (CLIP, f"    {CLIP}")),
    (
        "held-graphs",
        "bytes are kept for the backward pass at once",
        ("in window:", "in [window]:"),
        ("loss_fn(model, batch)", "sum(loss_fn(model, b) for b in window)"),
    ),
):
    wrong("two_bugs", bug, says=says)(edited(by_windows, *changes))

for bug, answer in (
    ("changed-input", lambda *a: by_windows(*a) or a[1].clear()),
    ("raises", lambda model, *_: model.no_such_thing()),
    ("not-attempted", lambda *_: None),
):
    wrong("two_bugs", bug)(answer)
