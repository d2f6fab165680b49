"""Answers to "two_bugs", with a short window and a clip, and to "is_correct", a test."""

import torch
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
    (
        "missing-backward",
        "the loop ends before batches [9, 10, 11] or",
        (WINDOWS, f"[window for window in {WINDOWS} if len(window) == n]"),
    ),
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


@right("is_correct")
def with_tensors(updates):
    table = torch.tensor(updates)
    return torch.allclose(table.sum(dim=1), torch.ones(len(table))) and bool((table.ne(0).sum(dim=0) == 1).all())


@right("is_correct")
def with_loops(updates):
    seen = set()
    for row in updates:
        if abs(sum(row) - 1) > 1e-9:
            return False
        for index, share in enumerate(row):
            if share and index in seen:
                return False
            if share:
                seen.add(index)
    return len(seen) == len(updates[0])


wrong("is_correct", "not-attempted")(lambda updates: None)
wrong("is_correct", "wrong-type")(lambda updates: [sum(row) == 1 for row in updates])
wrong("is_correct", "misses-wrong-sums")(lambda updates: all(any(column) for column in zip(*updates, strict=True)))
wrong("is_correct", "misses-wrong-sums", "windows of six and two")(
    edited(
        "is_correct",
        ("all(abs(sum(row) - 1) < 1e-9 for row in updates)", "abs(sum(map(sum, updates)) - len(updates)) < 0.1"),
    )
)
wrong("is_correct", "accuses-rounded-sums")(lambda updates: all(sum(row) == 1 for row in updates))
wrong("is_correct", "misses-lost-data")(lambda updates: all(abs(sum(row) - 1) < 1e-9 for row in updates))
wrong("is_correct", "misses-stale-data", "the first window's four")(
    edited("is_correct", ("== 1 for column", ">= 1 for column"))
)
wrong("is_correct", "accuses-correct-loops", "windows of four and one")(
    lambda updates: all(sum(share == 0.25 for share in row) == 4 for row in updates)
)
